"""A traced architecture. Equal layers share one body; walking it gives every node with its full name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from archc.ir.size import SOURCE, Dim, evaluate, product
from archc.ir.values import MODEL_DTYPE, Body, Call, Node, Param, State, Value
from archc.units import tensor_bytes

LAYER = re.compile(r"^(?:(?P<stack>.+)\.)?layers\.(?P<index>\d+)$")
"""Scopes of the root that are layers, with the stack in front where there are two."""

CAPACITY_MULTIPLE = 8
"""Rows of a full cache are a multiple of this: attention masks want aligned rows on a GPU."""


@dataclass(slots=True)
class Graph:
    """A model as one root body.

    ``inputs`` are declared, never found, the first is what the model reads: ``input_ids`` (batch, seq) int64 or
    ``pixel_values``; ``positions`` like ids, where they matter; ``attention_mask`` (batch, seq) of a bidirectional stack,
    1 for tokens and 0 for padding; ``prefix_length`` (batch,); ``encoder_input_ids`` and the like of an encoder that a
    decoder reads. ``outputs`` holds ``logits`` or ``hidden_states``, or several. ``mask`` is what a token of the stack that
    the head reads may see: only a causal one, or one with a prefix, goes on by a cache. ``mtp`` are the extra prediction
    layers, traced apart and counted apart.
    ``plugins`` maps "family:name" to (package, version). ``policies`` maps a mixer's name to its cache policy and the
    tokens a block where that gives out blocks: rules for counting, since what is computed is in the nodes. ``start_id`` is
    what a decoder that reads an encoder is given first, unless its caller says otherwise, and ``source_vocab_size`` are the
    ids that the encoder knows: facts for whoever generates.
    """

    name: str
    root: Body
    dtype: str
    vocab_size: int | None
    max_position_embeddings: int | None
    num_layers: int
    mask: str = "causal"
    inputs: dict[str, Value] = field(default_factory=dict[str, Value])
    outputs: dict[str, Value] = field(default_factory=dict[str, Value])
    plugins: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    policies: dict[str, tuple[str, int | None]] = field(default_factory=dict[str, tuple[str, int | None]])
    mtp: Graph | None = None
    start_id: int | None = None
    source_vocab_size: int | None = None
    _reserved_rows: int | None = field(default=None, init=False, repr=False, compare=False)

    def walk(self) -> Iterator[tuple[str, Node]]:
        """(full leaf path, node) in order of execution; nameless nodes have the path of their scope."""
        return _walk(self.root, "")

    def bodies(self) -> dict[Body, int]:
        """Every distinct body, in order of first use, and how many scopes enter it."""
        counts: dict[Body, int] = {}
        _count(self.root, 1, counts)
        return counts

    def params(self) -> dict[str, Param]:
        """state_dict key -> weight, each tied weight once, in order of execution."""
        return {
            join(prefix, param.name): param
            for prefix, node in walk_scopes(self.root, "")
            for param in node.params.values()
        }

    def states(self) -> dict[str, State]:
        """Full name -> state, in order of execution. The cache is a flat mapping with these keys."""
        return dict(self.root.states())

    def reserved_rows(self) -> int:
        """Rows of the capacity that belong to no token."""
        if self._reserved_rows is None:
            # Asked for with every state, and told by all of them.
            self._reserved_rows = max(
                (state.reserved for body in self.bodies() for node in body.nodes() for state in node.states.values()),
                default=0,
            )
        return self._reserved_rows

    def capacity(self, max_model_len: int) -> int:
        """Rows that a full cache for ``max_model_len`` tokens holds: one more where a sink needs it, rounded up to 8."""
        rows = max_model_len + self.reserved_rows()
        return -(-rows // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE

    @property
    def reads_encoder(self) -> bool:
        """Whether this is a decoder with its encoder, whose tokens are counted apart."""
        return any(SOURCE in value.shape for value in self.inputs.values())

    def state_shape(
        self, state: State, *, batch: int, max_model_len: int, source_len: int | None = None
    ) -> tuple[int, ...]:
        """The shape that torch's cache and the ONNX inputs allocate for a state.

        ``source_len`` are the tokens that the encoder is given, by default ``max_model_len``.
        """
        env = {
            "batch": batch,
            "capacity": self.capacity(max_model_len),
            "memory": max_model_len if source_len is None else source_len,
        }
        return tuple(evaluate(dim, env) for dim in state.allocated)


def join(prefix: str, name: str) -> str:
    """A dotted name; empty parts vanish."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _walk(body: Body, prefix: str) -> Iterator[tuple[str, Node]]:
    for item in body.items:
        if isinstance(item, Node):
            yield join(prefix, item.name), item
        else:
            yield from _walk(item.body, join(prefix, item.name))


def walk_scopes(body: Body, prefix: str) -> Iterator[tuple[str, Node]]:
    """(path of the scope that holds the node, node) in order of execution."""
    for item in body.items:
        if isinstance(item, Node):
            yield prefix, item
        else:
            yield from walk_scopes(item.body, join(prefix, item.name))


def _count(body: Body, times: int, counts: dict[Body, int]) -> None:
    counts[body] = counts.get(body, 0) + times
    entered: dict[Body, int] = {}
    for item in body.items:
        if isinstance(item, Call):
            entered[item.body] = entered.get(item.body, 0) + 1
    for inner, count in entered.items():
        _count(inner, times * count, counts)


def resolve_dtype(dtype: str, model_dtype: str) -> str:
    """A dtype with ``model`` replaced."""
    return model_dtype if dtype == MODEL_DTYPE else dtype


def param_bytes(param: Param, model_dtype: str) -> int:
    """Bytes of a weight stored in its own dtype, or the model's."""
    return tensor_bytes(param.elements, resolve_dtype(param.dtype, model_dtype))


def state_elements(state: State, env: Mapping[str, int], *, allocated: bool = False) -> int:
    """Elements of a state at given sizes."""
    shape: tuple[Dim, ...] = state.allocated if allocated else state.used
    return evaluate(product(shape), env)
