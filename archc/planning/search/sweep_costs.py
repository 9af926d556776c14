"""The numbers of a variant as one row of integers that can be added up, layer by layer, and the columns made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import NamedTuple

from archc.errors import ArchcError
from archc.estimation.cache import Cache, CacheOptions, measure_cache
from archc.estimation.estimate import Estimate, estimate
from archc.estimation.flops import FORMS, FlopsSums
from archc.estimation.parameters import count_parameters, count_weight_bytes
from archc.estimation.placed import Placed, Placement
from archc.graph.graph import Graph, state_elements
from archc.spec.near import nearest
from archc.units import tensor_bytes

Number = int | float | None

METRICS: dict[str, tuple[str, ...]] = {
    "parameters": ("parameters", "active_parameters", "embedding_parameters"),
    "weights": ("weight_bytes",),
    "cache": ("cache_bytes_per_token", "state_bytes_per_sequence", "cache_bytes_at"),
    "flops": ("prefill_flops_per_token_at", "decode_flops_per_token_at", "train_flops_per_token_at"),
}
"""Name of a metric -> its columns; one that ends in ``_at`` stands once for each length, as ``cache_bytes_at_4096``."""

Row = tuple[int, ...]
"""Parameters, active ones, embedding's, weight bytes, cache bytes a token, state bytes a sequence; then for each length cache
bytes and the FLOPs of a prefill, a decode step and a training step."""

_FIXED, _BY_LENGTH = 6, 4
_GROWTH = 4
"""Place of the cache bytes a token, which are rounded once a state and so need not be a layer's times their number."""

_MOST_LAYERS = 10_007
"""More than a spec's stack may have."""


class Sizes(NamedTuple):
    """Sequences at once, and the lengths in tokens that costs are given at; an encoder is given as many."""

    batch_size: int
    lengths: tuple[int, ...]

    def first(self) -> Sizes:
        """The first length alone."""
        return Sizes(self.batch_size, self.lengths[:1])


@dataclass(frozen=True, slots=True)
class Totals:
    """What a variant costs at the sizes of a search. ``decodes`` is False where nothing goes on by a cache."""

    row: Row
    sizes: Sizes
    decodes: bool

    @property
    def parameters(self) -> int:
        return self.row[0]

    @property
    def active_parameters(self) -> int:
        return self.row[1]

    @property
    def weight_bytes(self) -> int:
        return self.row[3]

    def cache_bytes(self, length: int) -> int:
        """Bytes that the whole batch keeps at a length in tokens, one of the sizes'."""
        return self.row[_FIXED + _BY_LENGTH * self.sizes.lengths.index(length)]

    def at_first(self) -> Totals:
        """The same at the first length alone."""
        return Totals(self.row[: _FIXED + _BY_LENGTH], self.sizes.first(), self.decodes)

    def numbers(self) -> tuple[Number, ...]:
        """The numbers of all metrics, in the order of ``names``.

        FLOPs are a new token's of one sequence: a prefill's or a training step's over its tokens.
        """
        batch = self.sizes.batch_size
        found: list[Number] = [*self.row[:_FIXED]]
        start = _FIXED
        for length in self.sizes.lengths:
            used, prefill, decode, train = self.row[start : start + _BY_LENGTH]
            tokens = batch * length
            found.append(used)
            found.append(_shared(prefill, tokens))
            found.append(_shared(decode, batch) if self.decodes else None)
            found.append(_shared(train, tokens))
            start += _BY_LENGTH
        return tuple(found)


def names(lengths: Sequence[int]) -> tuple[str, ...]:
    """The columns of all metrics, as ``Totals.numbers`` has them."""
    return columns(tuple(METRICS), lengths)


def _shared(number: int, tokens: int) -> int | float:
    """A number over tokens: exact where it comes out, else the nearest float."""
    return number // tokens if number % tokens == 0 else number / tokens


def columns(metrics: Sequence[str], lengths: Sequence[int]) -> tuple[str, ...]:
    """The columns of some metrics, those of one length beside each other.

    Raises:
        ArchcError: a metric is unknown; the message names the nearest.
    """
    for name in metrics:
        if name not in METRICS:
            near = nearest(name, METRICS)
            hint = f"Did you mean {near}?" if near else f"Known are {', '.join(METRICS)}"
            raise ArchcError(f"no metric is called {name!r}. {hint}")
    stems = [stem for name in METRICS if name in metrics for stem in METRICS[name]]
    plain = [stem for stem in stems if not stem.endswith("_at")]
    return (*plain, *(f"{stem}_{length}" for length in lengths for stem in stems if stem.endswith("_at")))


def slow_totals(graph: Graph, sizes: Sizes) -> Totals:
    """The totals by ``archc.estimate``, once a length: the readable twin that judges sums of layers."""
    at = [estimate(graph, batch_size=sizes.batch_size, max_model_len=length) for length in sizes.lengths]
    return Totals(_row_of(at), sizes, decodes=graph.mask != "bidirectional")


def _row_of(at: Sequence[Estimate]) -> Row:
    counts, cache = at[0].parameters, at[0].cache
    row = [counts.total, counts.active, counts.embedding, at[0].weights.bytes]
    row += [cache.bytes_per_token, _state_bytes(cache)]
    for found in at:
        row += [found.cache.used_bytes, *_steps(found.flops.numbers)]
    return tuple(row)


def _steps(numbers: dict[str, int]) -> tuple[int, int, int]:
    """A prefill, or the one forward pass of a bidirectional stack, a decode step and a training step."""
    return numbers.get("prefill", numbers.get("forward", 0)), numbers.get("decode", 0), numbers["train_step"]


class Cost:
    """What some nodes of a graph cost where they run once; ``times`` gives it for as many layers as a stack has."""

    __slots__ = ("_grown", "_growth", "row")

    def __init__(self, graph: Graph, nodes: Iterable[Placed], sizes: Sizes) -> None:
        # Sums by layer kind are nobody's here.
        nodes = [replace(placed, count=1, layer="") for placed in nodes]
        placement = Placement(nodes, {}, {})
        counts = count_parameters(placement)
        cache = _cache(graph, nodes, 1)
        row = [counts.total, counts.active, counts.embedding, count_weight_bytes(placement, graph.dtype).bytes]
        row += [cache.bytes_per_token, _state_bytes(cache)]
        flops = _flops(graph, nodes)
        for length in sizes.lengths:
            numbers = flops.numbers(batch=sizes.batch_size, length=length, source=length)
            row += [_used_bytes(graph, nodes, sizes.batch_size, length), *_steps(numbers)]
        self.row: Row = tuple(row)
        # A sum of floors that is linear up to more layers than there can be is linear for fewer. Then only the numbers stay.
        grows = cache.bytes_per_token
        is_linear = grows == 0 or _cache(graph, nodes, _MOST_LAYERS).bytes_per_token == grows * _MOST_LAYERS
        self._growth: Callable[[int], int] | None = (
            None if is_linear else lambda count: _cache(graph, nodes, count).bytes_per_token
        )
        self._grown: dict[int, int] = {}

    def times(self, count: int) -> Row:
        """The row of so many equal layers."""
        row = [count * number for number in self.row]
        if self._growth is not None:
            if count not in self._grown:
                self._grown[count] = self._growth(count)
            row[_GROWTH] = self._grown[count]
        return tuple(row)


def _cache(graph: Graph, nodes: Sequence[Placed], count: int) -> Cache:
    """The cache of so many equal layers at one token: for what does not depend on the length."""
    keeping = [replace(placed, count=count) for placed in nodes if placed.node.states]
    if not keeping:
        return Cache([], {}, "0", 0)
    return measure_cache(graph, Placement(keeping, {}, {}), CacheOptions(graph.dtype, None, 1, 1, 1, None))


def _used_bytes(graph: Graph, nodes: Sequence[Placed], batch_size: int, length: int) -> int:
    options = CacheOptions(graph.dtype, None, batch_size, length, length, None)
    env = {"batch": batch_size, "past": 0, "seq": length, "memory": length}
    states = [state for placed in nodes for state in placed.node.states.values()]
    return sum(tensor_bytes(state_elements(state, env), options.state_dtype(state)) for state in states)


def _flops(graph: Graph, nodes: Sequence[Placed]) -> FlopsSums:
    total = FlopsSums(decodes=graph.mask != "bidirectional")
    for placed in nodes:
        kinds = [value.type for value in placed.node.inputs]
        for form in FORMS:
            flops = placed.node.op.flops(kinds, form, "needed")
            if flops != 0:
                total.add(placed, form, flops)
    return total


def _state_bytes(cache: Cache) -> int:
    return cache.total("recurrent_bytes_per_sequence") + cache.total("convolution_bytes_per_sequence")


def added(rows: Sequence[Row]) -> Row:
    """The sum of some rows."""
    total = rows[0]
    for row in rows[1:]:
        total = tuple(map(add, total, row))
    return total
