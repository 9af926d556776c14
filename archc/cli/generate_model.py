"""What the command line names becomes a torch model with weights, a tokenizer, and the ids that end a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

from archc.cli.files import require_memory
from archc.cli.progress import busy, progress_bar
from archc.errors import ArchcError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.families import Tokenizer
from archc.generation.text import Text, read_tokenizer
from archc.spec.load import load_spec, loads_spec
from archc.spec.nodes import is_list
from archc.spec.schema import Spec
from archc.torch_backend.build import build
from archc.torch_backend.generate import as_text, generate
from archc.torch_backend.weights import load_weights
from archc.units import gib

SPEC, CONFIG, CONTRACT = "spec.yaml", "config.json", "archc.json"
TOKENIZER, GENERATION = "tokenizer.json", "generation_config.json"
OTHER_TOKENIZERS = ("tokenizer.model", "vocab.json", "vocab.txt")
"""Older forms, which the tokenizers library doesn't read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model that generates; ``text`` is None where there is no tokenizer, ``source`` is what reads an encoder's prompts."""

    model: nn.Module
    name: str
    device: str
    dtype: str
    text: Text | None
    source: Text | None
    stop_ids: tuple[int, ...]
    is_random: bool

    @property
    def generate(self) -> Callable[..., Any]:
        """``archc.generate`` of this model and tokenizer."""
        return partial(generate, self.model, tokenizer=self.text, source_tokenizer=self.source)


def opened(
    source: str,
    overrides: Sequence[str],
    *,
    weights: str | None,
    tokenizer: str | None,
    device: str | None,
    dtype: str | None,
    needs_text: bool,
    continues: bool = True,
    seed: int = 0,
) -> Opened:
    """The model that ``source`` names, with its weights, on a device. ``continues`` wants one that goes on from a text.

    Raises:
        ArchcError: there is none, its weights don't fit, or it can't be had here.
    """
    folder = Path(source) if Path(source).is_dir() else None
    spec = load_spec(source, overrides) if folder is None else _spec_of(folder, overrides)
    graph = expand(spec)
    if continues and graph.mask == "bidirectional":
        raise ArchcError(
            f"{graph.name} is an encoder: it sees a text as a whole and continues none. archc export writes it, and archc run "
            f"gives its {', '.join(graph.outputs)}; in Python, model(ids, attention_mask) of archc.build does"
        )
    place = _device(device)
    found = estimate(graph, dtype=dtype)
    if place == "cpu":
        require_memory(found.weights.bytes)
    text, reader = _texts(spec, source, folder, tokenizer, needs_text=needs_text)
    held = Path(weights) if weights is not None else folder
    with busy(f"building {graph.name}, {gib(found.weights.bytes)}"):
        model = build(graph, device=place, dtype=found.dtype, seed=seed if held is None else None)
    if held is None:
        click.echo("archc: no weights are given; these are random, so what comes is noise", err=True)
    else:
        with progress_bar("weights") as move:
            load_weights(model, held, progress=move)
    return Opened(
        model=model.eval(),
        name=graph.name,
        device=place,
        dtype=found.dtype,
        text=text,
        source=reader,
        stop_ids=_stop_ids(spec, folder),
        is_random=held is None,
    )


def _spec_of(folder: Path, overrides: Sequence[str]) -> Spec:
    """Of what archc wrote, or of a Hugging Face checkpoint."""
    if (folder / CONTRACT).is_file():
        raise ArchcError(f"{folder} is an exported model; archc run {folder} runs it")
    if (folder / SPEC).is_file():
        return load_spec(folder / SPEC, overrides)
    if (folder / CONFIG).is_file():
        from archc.checkpoint.opening import import_folder

        imported = import_folder(folder)
        return loads_spec(imported.text, file=f"<spec of {folder / CONFIG}>", overrides=overrides)
    raise ArchcError(
        f"{folder} has neither {SPEC}, which archc build and archc convert write, nor the {CONFIG} of a checkpoint"
    )


def _device(asked: str | None) -> str:
    if asked == "cuda" and not torch.cuda.is_available():
        raise ArchcError("torch finds no CUDA device here; choose --device cpu")
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")


def _texts(
    spec: Spec, source: str, folder: Path | None, given: str | None, *, needs_text: bool
) -> tuple[Text | None, Text | None]:
    """(what writes answers, what reads prompts): two where encoder and decoder have tokenizers of their own."""
    kinds = [stack.tokenizer or spec.tokenizer for stack in spec.stacks().values()]
    reads, writes = kinds[0], kinds[-1]
    if reads is writes:
        text = _text(writes, source, folder, given, needs_text=needs_text)
        return text, text
    if given is not None:
        raise ArchcError(f"{source}: encoder and decoder have tokenizers of their own; the spec names their files")
    answers, prompts = (
        _text(kind, source, folder, None, needs_text=needs_text, is_own=True) for kind in (writes, reads)
    )
    return answers, prompts


def _text(
    kind: Tokenizer, source: str, folder: Path | None, given: str | None, *, needs_text: bool, is_own: bool = False
) -> Text | None:
    """The tokenizer that was given, that lies in the folder, or that the spec says; the last where a stack has its own."""
    if not needs_text and given is None and find_spec("tokenizers") is None:
        # Ids need none.
        return None
    if given is not None:
        path = Path(given)
        return _checked(read_tokenizer(path / TOKENIZER if path.is_dir() else path), given, kind)
    if folder is not None and (folder / TOKENIZER).is_file() and not is_own:
        return _checked(read_tokenizer(folder / TOKENIZER), str(folder / TOKENIZER), kind)
    if not kind.has_file():
        if needs_text:
            raise ArchcError(
                f"{source} has no tokenizer, so a prompt is ids; --tokenizer PATH hands one over{_hint(folder)}"
            )
        return None
    try:
        return as_text(kind.load(folder or Path(source).parent))
    except ArchcError as error:
        # A folder's spec may name a file that stayed where the spec came from.
        if needs_text:
            raise
        click.echo(f"archc: ids are printed, because the tokenizer can't be had: {error}", err=True)
        return None


def _hint(folder: Path | None) -> str:
    """What else lies in the folder that a tokenizer.json can be made of."""
    other = [name for name in OTHER_TOKENIZERS if folder is not None and (folder / name).is_file()]
    if not other:
        return ""
    return f". {other[0]} becomes a {TOKENIZER} by transformers' AutoTokenizer.from_pretrained, then save_pretrained"


def _checked(text: Text, path: str, kind: Tokenizer) -> Text:
    if text.last_id >= kind.ids():
        raise ArchcError(f"{path}: has the id {text.last_id}, and the spec says that there are {kind.ids()} ids")
    return text


def _stop_ids(spec: Spec, folder: Path | None) -> tuple[int, ...]:
    """End of text by the folder's generation_config.json, or by the spec."""
    path = None if folder is None else folder / GENERATION
    if path is not None and path.is_file():
        try:
            stated: Any = json.loads(path.read_text("utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError) as error:
            raise ArchcError(f"{path} can't be read: {error}") from error
        ids: list[Any] = [stated] if isinstance(stated, int) else list(stated) if is_list(stated) else []
        if ids and all(isinstance(one, int) for one in ids):
            return tuple(ids)
    return tuple((spec.main.tokenizer or spec.tokenizer).role_ids("eos"))
