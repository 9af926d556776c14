"""Texts that a model writes while it is trained. Nothing of it reaches the training: no random numbers, no weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from archc.errors import ArchcError
from archc.generation.rows import Prompt
from archc.generation.text import Text
from archc.graph.graph import Graph
from archc.planning.stage_values import params_of_stages
from archc.planning.stages import split_into_stages
from archc.spec.schema import Spec
from archc.torch_backend.build import build
from archc.torch_backend.context import torch_dtype
from archc.torch_backend.generate import generate
from archc.training.data.tokens import Tokens
from archc.training.module import TrainingModel
from archc.training.options import TrainOptions
from archc.training.parallel.fsdp import needs_fsdp
from archc.training.parallel.stage import weights_here
from archc.training.parallel.world import World
from archc.training.watching.watcher import Sample

NEW_TOKENS = 100
PROMPT_TOKENS = 16
"""Of the data, where no prompt is given."""
TEMPERATURE = 0.8
"""Of the drawn text; the greedy one has none."""


class ModelSampler:
    """Each prompt continued greedily and as drawn from a seed: equal weights give equal texts.

    Called on all ranks alike, the first one gets the texts. Where it holds all weights as they are, its model writes; else the
    weights are gathered, one at a time, into a model of its own, in the dtype that is computed in, for as long as it writes.
    """

    def __init__(
        self,
        graph: Graph,
        module: TrainingModel,
        options: TrainOptions,
        world: World,
        *,
        prompts: Sequence[Prompt],
        text: Text | None,
        source_text: Text | None = None,
        new_tokens: int = NEW_TOKENS,
        stop_ids: Sequence[int] = (),
    ) -> None:
        self._graph, self._module, self._options, self._world = graph, module, options, world
        self._prompts, self._text, self._source = list(prompts), text, source_text
        self._new_tokens, self._stop_ids = new_tokens, tuple(stop_ids)

    def __call__(self, step: int) -> list[Sample]:
        is_whole = self._world.mesh is None and not needs_fsdp(self._options)
        if is_whole:
            model: nn.Module = self._module.model
            was_training = model.training
            model.eval()
            try:
                # A compiled layer would be compiled anew for every length.
                with torch.compiler.set_stance("force_eager"):
                    return self._written(model, step)
            finally:
                model.train(was_training)
        own = whole_model(self._module.model, self._graph, self._world, self._options.dtype)
        return [] if own is None else self._written(own.eval(), step)

    def _written(self, model: nn.Module, step: int) -> list[Sample]:
        found: list[Sample] = []
        for kind, temperature in (("greedy", 0.0), ("drawn", TEMPERATURE)):
            made = generate(
                model,
                self._prompts,
                tokenizer=self._text,
                source_tokenizer=self._source,
                max_new_tokens=self._room(),
                temperature=temperature,
                seed=self._options.seed,
                stop_ids=self._stop_ids,
            )
            texts = made.texts or [" ".join(map(str, ids)) for ids in made.ids]
            for prompt, text, ids in zip(self._prompts, texts, made.ids, strict=True):
                found.append(Sample(step=step, kind=kind, prompt=self._shown(prompt), text=text, ids=tuple(ids)))
        return found

    def _room(self) -> int:
        """New tokens that fit behind the longest prompt."""
        most = self._graph.max_position_embeddings
        if most is None or self._graph.reads_encoder:
            return self._new_tokens
        reader = self._source or self._text
        lengths = [
            len(reader.encode(prompt)) if isinstance(prompt, str) and reader is not None else len(prompt)
            for prompt in self._prompts
        ]
        return min(self._new_tokens, most - max(lengths))

    def _shown(self, prompt: Prompt) -> str:
        reader = self._source or self._text
        if isinstance(prompt, str):
            shown = prompt
        elif reader is not None:
            shown = reader.decode([int(number) for number in prompt])
        else:
            shown = " ".join(map(str, prompt)) + " "
        # An answer is no end of what is asked.
        return f"{shown} → " if self._graph.reads_encoder else shown


def refuse_samples(
    graph: Graph, options: TrainOptions, prompts: Sequence[str], texts: tuple[Text | None, Text | None]
) -> None:
    """Before a run begins. ``texts`` are (of what is written, of what an encoder reads).

    Raises:
        ArchcError: the model continues no text, or a prompt can't be read, or has no room.
    """
    if options.sample_every is None:
        if prompts:
            raise ArchcError("sample_prompts are gone on from every sample_every steps, which is not stated")
        return
    if graph.mask == "bidirectional":
        raise ArchcError(f"sample_every: {graph.name} is an encoder: it sees a text as a whole and continues none")
    reader = texts[1] if graph.reads_encoder else texts[0]
    if prompts and reader is None:
        raise ArchcError(f"sample_prompts: {graph.name} has no tokenizer; hand one over")
    most = graph.max_position_embeddings
    for prompt in prompts:
        assert reader is not None
        try:
            length = len(reader.encode(prompt))
        except Exception as error:  # The library raises nothing more special.
            raise ArchcError(f"sample_prompts: the tokenizer can't read {prompt[:40]!r}: {error}") from error
        if not length:
            raise ArchcError(f"sample_prompts: {prompt[:40]!r} has no tokens; leave it out")
        if most is not None and length > (most if graph.reads_encoder else most - 1):
            raise ArchcError(
                f"sample_prompts: {prompt[:40]!r}… has {length:,} tokens, and {graph.name} has room for {most:,}, its own text "
                "included (max_position_embeddings)"
            )


def sampler_for(
    graph: Graph,
    spec: Spec,
    module: TrainingModel,
    options: TrainOptions,
    world: World,
    *,
    prompts: Sequence[str],
    texts: tuple[Text | None, Text | None],
    data: Tokens,
) -> ModelSampler | None:
    """What writes every ``sample_every`` steps; without prompts it goes on from the beginning of the data, a source as a whole.

    ``texts`` are (of what is written, of what an encoder reads).
    """
    if options.sample_every is None:
        return None
    first, most = int(data.starts[1]), graph.max_position_embeddings
    length = options.seq_len if data.is_paired else min(PROMPT_TOKENS, most // 2 if most else PROMPT_TOKENS)
    ids = data.read(0, min(first, max(1, length))).tolist()
    writes, reads = texts
    stop_ids = (spec.main.tokenizer or spec.tokenizer).role_ids("eos")
    return ModelSampler(
        graph,
        module,
        options,
        world,
        prompts=[*prompts] or [ids],
        text=writes,
        source_text=reads,
        stop_ids=stop_ids,
    )


def whole_model(model: nn.Module, graph: Graph, world: World, dtype: str) -> Any:
    """A model of its own with the weights that ranks hold in pieces, on the first rank; None on others, which call it too."""
    gathered = whole_weights(model, graph, world)
    if not world.is_first:
        for _ in gathered:
            pass
        return None
    own: Any = build(graph, device=world.device, dtype=torch_dtype(dtype))
    held = weights_here(own, graph)
    with torch.no_grad():
        for name, tensor in gathered:
            held[name].copy_(tensor)
    return own


def whole_weights(model: nn.Module, graph: Graph, world: World) -> Iterator[tuple[str, Tensor]]:
    """Name -> weight, all of it, on every rank, one at a time in the graph's order. Every rank goes through all of them."""
    held = weights_here(model, graph)
    stages = params_of_stages(graph, split_into_stages(graph, world.parallel.pp).stages)
    for name, param in graph.params().items():
        tensor = held.get(name)
        whole = None if tensor is None else tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
        if len(stages) > 1:
            owner = next(index for index, names in enumerate(stages) if name in names)
            if whole is None:
                dtype = torch.float32 if param.dtype == "model" else torch_dtype(param.dtype)
                whole = torch.empty(param.shape, dtype=dtype, device=world.device)
            whole = whole.contiguous()
            dist.broadcast(whole, group=world.group("pp"), group_src=owner)
        assert whole is not None, f"{name} is on no stage"
        yield name, whole
