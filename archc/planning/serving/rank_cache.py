"""What each rank caches, read off the cut states: bytes as tensors, by layer kind, and what a paged runtime makes of a layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from archc.estimation.cache import CacheOptions
from archc.graph.graph import Graph
from archc.ir.size import evaluate, product
from archc.ir.values import State
from archc.planning.serving.paged import CacheType, LayerCache
from archc.planning.sharding import ShardedState, Sharding, Stage
from archc.units import tensor_bytes

FAR = 720_720 << 20
"""Tokens beyond every window: growth is measured between this and twice this. Up to 16 cp ranks divide it."""


@dataclass(slots=True, eq=False, repr=False)
class KindCache:
    """The caches of all layers whose mixer has one name. Bytes are of one sequence, in the whole model and on one rank.

    A rank is of the stage that holds most layers of the kind. ``token_bytes`` grow with every token, ``window_bytes`` until
    ``window_tokens`` are reached; ``source_token_bytes`` are of a token of an encoder. ``held`` says by name what is cut and what
    stands on several ranks.
    """

    name: str
    layers: int = 0
    rank_layers: int = 0
    token_bytes: Fraction = Fraction(0)
    rank_token_bytes: Fraction = Fraction(0)
    window_tokens: int | None = None
    window_bytes: int = 0
    rank_window_bytes: int = 0
    state_bytes: int = 0
    rank_state_bytes: int = 0
    source_token_bytes: int = 0
    rank_source_token_bytes: int = 0
    held: list[str] = field(default_factory=list[str])

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "layers": self.layers,
            "layers_on_a_rank": self.rank_layers,
            "bytes_per_token": plain(self.token_bytes),
            "bytes_per_token_on_a_rank": plain(self.rank_token_bytes),
            "window_tokens": self.window_tokens,
            "window_bytes_per_sequence": self.window_bytes,
            "window_bytes_per_sequence_on_a_rank": self.rank_window_bytes,
            "state_bytes_per_sequence": self.state_bytes,
            "state_bytes_per_sequence_on_a_rank": self.rank_state_bytes,
            "bytes_per_source_token": self.source_token_bytes,
            "bytes_per_source_token_on_a_rank": self.rank_source_token_bytes,
            "held": self.held,
        }


def plain(number: Fraction) -> int | float:
    """A whole number as an integer: entries that stand for several tokens may have fractions."""
    return number.numerator if number.denominator == 1 else float(number)


def cache_bytes(
    stage: Stage, graph: Graph, options: CacheOptions, batch: int, tokens: int, *, allocated: bool = False
) -> int:
    """Bytes of a batch's cache on a rank of a stage: what the formulas need, or what tensors of archc's own runtimes hold."""
    total = 0
    env = {"batch": batch, "past": 0, "seq": tokens, "memory": options.source_len, "capacity": graph.capacity(tokens)}
    for placed in stage.states:
        shape = placed.local.allocated if allocated else placed.local.used
        total += tensor_bytes(evaluate(product(shape), env), options.state_dtype(placed.state)) * placed.count
    return total


def layer_caches(stage: Stage, options: CacheOptions, cp: int) -> tuple[list[LayerCache], int]:
    """(what the stage's layers keep, in order; bytes a request beside them).

    Small fixed rows of a layer that also keeps growing ones (a tail that waits for its block) are no pages of their own; a
    recurrent state is, and where one mixer has attention beside it, both are kept as a layer of each would.
    """
    scopes: dict[tuple[tuple[str, ...], str], list[ShardedState]] = {}
    for placed in stage.states:
        scopes.setdefault((placed.prefixes, f"{placed.kind} {placed.path.split('.')[0]}"), []).append(placed)
    order = {name: number for number, name in enumerate(stage.layers)}
    found: list[tuple[int, LayerCache]] = []
    beside = 0
    for (prefixes, _), states in scopes.items():
        by_type: dict[tuple[CacheType, int | None], list[ShardedState]] = {}
        for placed in states:
            by_type.setdefault(_type(placed), []).append(placed)
        growing = [key for key in by_type if key[0] != "state"]
        for key, members in by_type.items():
            if key[0] == "state" and growing and all(each.state.role != "recurrent" for each in members):
                beside += len(prefixes) * sum(_fixed_bytes(each.local, options) for each in members)
                continue
            layer = LayerCache(
                kind=members[0].kind,
                type=key[0],
                window=key[1],
                token_bytes=sum(
                    (_token_bytes(each.local, options) * _tokens_ways(each, cp) for each in members), Fraction(0)
                ),
                state_bytes=sum(_fixed_bytes(each.local, options) for each in members) if key[0] == "state" else 0,
                several=len(growing) > 1,
            )
            found += [(order.get(prefix, -1), layer) for prefix in prefixes]
    return [layer for _, layer in sorted(found, key=lambda item: item[0])], beside


def kind_caches(sharding: Sharding, options: CacheOptions) -> list[KindCache]:
    """One row a mixer's name, in order of first use: what grows, what is fixed, and what each rank holds of it."""
    kinds: dict[str, KindCache] = {}
    for stage in sharding.stages:
        ranks: dict[str, KindCache] = {}
        for placed in stage.states:
            kind = kinds.setdefault(placed.kind, KindCache(placed.kind))
            here = ranks.setdefault(placed.kind, KindCache(placed.kind))
            _add(kind, here, placed, options)
        for name, layers in _layers(stage).items():
            kinds[name].layers += layers
            ranks[name].rank_layers = layers
        for name, here in ranks.items():
            kind = kinds[name]
            if here.rank_layers > kind.rank_layers:
                for quantity in ("layers", "token_bytes", "window_bytes", "state_bytes", "source_token_bytes"):
                    setattr(kind, f"rank_{quantity}", getattr(here, f"rank_{quantity}"))
    return list(kinds.values())


def _layers(stage: Stage) -> dict[str, int]:
    seen: dict[str, set[str]] = {}
    for placed in stage.states:
        seen.setdefault(placed.kind, set()).update(placed.prefixes)
    return {name: len(prefixes) for name, prefixes in seen.items()}


def _add(kind: KindCache, here: KindCache, placed: ShardedState, options: CacheOptions) -> None:
    whole, local, count = placed.state, placed.local, placed.count
    name = whole.name.rpartition(".")[2]
    held = f"{name}: {_held(placed)}"
    if held not in kind.held:
        kind.held.append(held)
    kept, window = _type(placed)
    if kept == "state":
        kind.state_bytes += _fixed_bytes(whole, options) * count
        here.rank_state_bytes += _fixed_bytes(local, options) * count
    elif kept == "source":
        kind.source_token_bytes += _bytes(whole, options, 1) * count
        here.rank_source_token_bytes += _bytes(local, options, 1) * count
    elif window is not None:
        kind.window_tokens = max(kind.window_tokens or 0, window)
        kind.window_bytes += _bytes(whole, options, FAR) * count
        here.rank_window_bytes += _bytes(local, options, FAR) * count
    else:
        kind.token_bytes += _token_bytes(whole, options) * count
        here.rank_token_bytes += _token_bytes(local, options) * count


def _held(placed: ShardedState) -> str:
    if placed.copies > 1:
        return f"each piece on {placed.copies} ranks ({placed.why})"
    return f"one piece a rank, some of it on several ({placed.why})" if placed.why else "one piece a rank"


def _type(placed: ShardedState) -> tuple[CacheType, int | None]:
    state = placed.state
    if state.growth == "source":
        return "source", None
    if state.token_dim is None:
        return "state", None
    if state.growth == "ring":
        rows = evaluate(state.allocated[state.token_dim], {})
        return ("chunked" if placed.node.op.empties_ring(placed.role) else "sliding"), rows
    return "full", None


def _bytes(state: State, options: CacheOptions, tokens: int) -> int:
    env = {"batch": 1, "past": 0, "seq": tokens, "memory": tokens}
    return tensor_bytes(evaluate(product(state.used), env), options.state_dtype(state))


def _fixed_bytes(state: State, options: CacheOptions) -> int:
    return _bytes(state, options, 1)


def _token_bytes(state: State, options: CacheOptions) -> Fraction:
    """Growth by a token: of a ring while it fills, else far from the beginning, where entries of several tokens even out."""
    if state.growth in ("ring", "source"):
        return Fraction(_bytes(state, options, 1))
    far = _bytes(state, options, 2 * FAR) - _bytes(state, options, FAR)
    return Fraction(far, FAR)


def _tokens_ways(placed: ShardedState, cp: int) -> int:
    """What a block of a rank stands for: with cp, its rows are those of as many more tokens."""
    return cp if placed.local.growth == "append" else 1
