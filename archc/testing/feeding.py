"""What the contract feeds a model: a tensor for every input of its graph, cut into calls as the input wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from archc.graph.graph import Graph
from archc.ir.size import SEQ, SOURCE, evaluate
from archc.ir.values import Value
from archc.ops.linear import Embedding
from archc.torch_backend.step import Step

BATCH, LENGTH, FIRST, SECOND = 2, 23, 11, 7
SOURCE_LENGTH = 9
"""Tokens of an encoder that a decoder reads."""
PREFIX = (5, 3)
"""Tokens of each row that see each other whole, where the mask has a prefix: no more than any first call brings."""
SHORT = 0.6
"""Share of its tokens that the second row keeps where rows are ragged."""


@dataclass(frozen=True, eq=False)
class Given:
    """Tensors of a call, rows first. ``main`` is what the model reads, with ``by_token`` a column a token beside it.

    ``source`` are inputs of an encoder that a decoder reads, given in the first call over a cache only; ``always`` are
    given in every call, masks among them.
    """

    graph: Graph
    main: Tensor
    by_token: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    source: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    always: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    @property
    def has_rows(self) -> bool:
        """Whether the model may be given more or fewer tokens."""
        return SEQ in next(iter(self.graph.inputs.values())).shape

    def run(self, model: nn.Module, **more: Any) -> tuple[Tensor, ...]:
        """The outputs for everything at once."""
        return _several(model(self.main, **self.by_token, **self.source, **self.always, **more))

    def part(self, model: nn.Module, start: int, stop: int, step: Step, cache: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The outputs of a call over a cache that brings tokens start to stop - 1, with the encoder's where it is the first."""
        columns = {name: tensor[:, start:stop] for name, tensor in self.by_token.items()}
        source = self.source if step.past == 0 else {}
        return _several(model(self.main[:, start:stop], step, cache, **columns, **source, **self.always))

    def row(self, row: int, tokens: int | None = None, source: int | None = None) -> Given:
        """One row alone, its first tokens and its encoder's, without masks of padding."""
        one = slice(row, row + 1)
        return Given(
            self.graph,
            self.main[one, :tokens] if self.has_rows else self.main[one],
            {name: tensor[one, :tokens] for name, tensor in self.by_token.items()},
            {name: tensor[one, :source] if tensor.dim() == 2 else tensor[one] for name, tensor in self.source.items()},
            {name: tensor[one] for name, tensor in self.always.items() if not name.endswith("attention_mask")},
        )

    def padded(self, lengths: Iterable[int], *, left: bool) -> Given:
        """The first tokens of each row, the rest of it padding of any value on one side, and the mask that says so."""
        counts = list(lengths)
        mask = _mask(counts, self.main.shape[1], left=left)
        columns = {name: _placed(tensor, counts, left=left) for name, tensor in self.by_token.items()}
        always = {**self.always, "attention_mask": mask}
        return replace(self, main=_placed(self.main, counts, left=left), by_token=columns, always=always)

    def padded_source(self, lengths: Iterable[int], *, left: bool) -> Given:
        """The same of the encoder's tokens."""
        counts = list(lengths)
        source = {
            name: _placed(tensor, counts, left=left) if tensor.dim() == 2 else tensor
            for name, tensor in self.source.items()
        }
        mask = _mask(counts, SOURCE_LENGTH, left=left)
        return replace(self, source=source, always={**self.always, "encoder_attention_mask": mask})

    def ragged(self) -> Given:
        """With padding wherever the model takes a mask for it."""
        found = self
        if "attention_mask" in self.graph.inputs:
            found = found.padded(short(LENGTH), left=False)
        if "encoder_attention_mask" in self.graph.inputs:
            found = found.padded_source(short(SOURCE_LENGTH), left=True)
        return found


def short(length: int) -> tuple[int, ...]:
    """Tokens of each row where the second is shorter."""
    return (length, int(SHORT * length))


def feed(graph: Graph, length: int = LENGTH) -> Given:
    """Random ids, numbers and lengths for every input of a graph but positions and masks of padding."""
    draw = torch.Generator().manual_seed(0)
    names = [name for name in graph.inputs if not name.endswith(("positions", "attention_mask"))]
    if "attention_mask" in names[0]:
        raise AssertionError(f"{names[0]} can't be the first input")
    tensors = {name: _drawn(graph, name, graph.inputs[name], draw, length) for name in names}
    main, *others = names
    by_token = {name for name in others if SEQ in graph.inputs[name].shape}
    source = {name for name in others if SOURCE in graph.inputs[name].shape or name.startswith("encoder_")}
    return Given(
        graph,
        tensors[main],
        {name: tensors[name] for name in others if name in by_token},
        {name: tensors[name] for name in others if name in source - by_token},
        {name: tensors[name] for name in others if name not in source | by_token},
    )


def _drawn(graph: Graph, name: str, value: Value, draw: torch.Generator, length: int) -> Tensor:
    if name == "prefix_length":
        return torch.tensor(PREFIX)
    shape = tuple(evaluate(dim, {"batch": BATCH, "seq": length, "source": SOURCE_LENGTH}) for dim in value.shape)
    if value.dtype != "int64":
        return torch.randn(shape, generator=draw)
    return torch.randint(0, _bound(graph, name, value), shape, generator=draw)


def _bound(graph: Graph, name: str, value: Value) -> int:
    """Ids that an input may hold: those of the vocabulary, the rows of the table that it is looked up in, or 0 and 1."""
    if name == "input_ids" and graph.vocab_size is not None:
        return graph.vocab_size
    tables = [node.op for node in graph.root.nodes() if value in node.inputs and isinstance(node.op, Embedding)]
    rows = [op.num_embeddings for op in tables]
    # A table that an encoder shares has rows that are no id's, which a file leaves out.
    shared = [graph.vocab_size] if name == "encoder_input_ids" and graph.vocab_size is not None else []
    return min([*rows, *shared], default=2)


def _mask(counts: list[int], width: int, *, left: bool) -> Tensor:
    mask = torch.zeros(len(counts), width, dtype=torch.int64)
    for row, count in enumerate(counts):
        mask[row, width - count if left else 0 : width if left else count] = 1
    return mask


def _placed(tensor: Tensor, counts: list[int], *, left: bool) -> Tensor:
    """Each row's first tokens at one end; what it held in the others' places stays there, as padding."""
    found = tensor.clone()
    if left:
        for row, count in enumerate(counts):
            found[row] = tensor[row].roll(tensor.shape[1] - count, 0)
    return found


def _several(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def by_token(graph: Graph) -> tuple[bool, ...]:
    """For each output whether it has a row a token, rather than one a text."""
    return tuple(len(value.shape) > 2 for value in graph.outputs.values())
