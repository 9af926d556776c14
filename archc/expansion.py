"""A spec becomes a graph: defaults are filled into kinds, kinds are traced, equal layers share one body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any
from typing import cast as typing_cast

from pydantic import BaseModel

from archc import registry
from archc.errors import ArchcError, GraphError
from archc.families import FFN, Block, CachePolicy, Embedding, Mixer, Norm, Position, Tokenizer
from archc.graph.graph import Graph
from archc.graph.vocabulary import Builder
from archc.ir.size import BATCH, SEQ, SOURCE, Dim
from archc.ir.values import Param, TensorType, Value
from archc.ops.position import TokenIndex
from archc.spec.kind import Kind
from archc.spec.load import load_spec
from archc.spec.schema import LayerPlan, Spec, Stack
from archc.spec.sharing import owning_layers

Source = Spec | Graph | str | PathLike[str]
"""What names an architecture: a spec, a graph, a file or a shipped name."""


def as_graph(source: Source, overrides: Sequence[str] = ()) -> Graph:
    """The graph of whatever names an architecture; ``overrides`` are ``path=value`` on a file or a shipped name.

    Raises:
        SpecError: with all problems of the spec.
        ArchcError: there are overrides of what is no file.
    """
    if not isinstance(source, Spec | Graph):
        return expand(load_spec(fspath(source), overrides))
    if overrides:
        raise ArchcError(f"{source.name}: only a file or a shipped name can be overridden")
    return source if isinstance(source, Graph) else expand(source)


def expand(spec: Spec, *, builder: Callable[..., Builder] = Builder) -> Graph:
    """The graph of a spec: sizes symbolic, weights and states declared, nothing allocated.

    ``builder`` makes what the kinds are traced with, ``mtp`` left out: one that also watches what they ask for.

    Raises:
        GraphError: a kind builds something illegal; the message names the scope and the op.
    """
    g = builder(max_position_embeddings=spec.max_position_embeddings, has_tokens=False)
    stacks = [_Surroundings(spec, section, stack) for section, stack in spec.stacks().items()]
    last = stacks[-1]
    # The stack that the head reads owns the plain names, so that a decoder is called like any other.
    for around in reversed(stacks):
        _declare(g, around, SEQ if around is last else SOURCE, prefix="" if around is last else "encoder_")
    shared = len(stacks) > 1 and all(around.shares_table for around in stacks)
    x, table = None, None
    for around in stacks:
        if x is not None:
            g.memory, g.memory_padding = x, g.inputs.get("encoder_attention_mask")
        section = f"{around.section}." if len(stacks) > 1 else ""
        x, table = _stack(g, spec, around, table if shared else None, section, is_shared=shared)
    assert x is not None, "a spec has a stack"
    g.norm = lambda name, value: last.norm.define(g, name, value)
    found = spec.head.define(g, x, table=table, tied=last.embedding.tied())
    outputs: dict[str, Value] = {spec.head.output: found} if isinstance(found, Value) else dict(found)
    g.root.outputs += list(outputs.values())
    return Graph(
        name=spec.name,
        root=g.root,
        dtype=spec.dtype,
        vocab_size=last.tokenizer.ids() or None,
        max_position_embeddings=last.embedding.num_tokens() or spec.max_position_embeddings,
        num_layers=sum(around.stack.num_layers for around in stacks),
        mask=last.mask,
        inputs=g.inputs,
        outputs=outputs,
        plugins=_plugins(spec),
        policies={name: rule for around in stacks for name, rule in around.policies(spec).items()},
        mtp=_mtp(spec) if spec.mtp is not None else None,
        start_id=_start_id(last.tokenizer) if len(stacks) > 1 else None,
        source_vocab_size=(stacks[0].tokenizer.ids() or None) if len(stacks) > 1 else None,
    )


def _start_id(tokenizer: Tokenizer) -> int | None:
    """What begins a text, else what pads one, as in T5; None where the spec states neither."""
    return next((number for role in ("bos", "pad") for number in tokenizer.role_ids(role)), None)


class _Surroundings:
    """A stack and the nearest statement of whatever holds for it: position, norm, cache, block, embedding, tokenizer."""

    def __init__(self, spec: Spec, section: str, stack: Stack) -> None:
        self.section, self.stack = section, stack
        self.mask = stack.mask or "causal"
        self.tokenizer: Tokenizer = stack.tokenizer or spec.tokenizer
        self.embedding: Embedding = stack.embedding or spec.embedding
        self.position: Position = stack.position or spec.position
        self.norm: Norm = stack.norm or spec.norm
        self.cache: CachePolicy = stack.cache or spec.cache
        self.block: Block = stack.block or spec.main.block
        self.final_norm = self.block.final_norm_default if stack.final_norm is None else stack.final_norm
        self.shares_table = stack.tokenizer is None and stack.embedding is None
        self.tokens: Value | None = None
        self.positions: Value | None = None
        self.padding: Value | None = None

    def policies(self, spec: Spec) -> dict[str, tuple[str, int | None]]:
        """Mixer -> (the cache policy that rules it, tokens a block where it gives out blocks)."""
        rules: dict[str, CachePolicy] = {name: mixer.cache or self.cache for name, mixer in spec.mixers.items()}
        return {name: (policy.kind_name, policy.block_tokens()) for name, policy in rules.items()}

    def fill(self, mixer: Mixer) -> Mixer:
        """The mixer with its open defaults filled in."""
        missing = {
            name: getattr(self, name) for name in ("position", "norm", "block", "cache") if getattr(mixer, name) is None
        }
        return mixer.model_copy(update=missing)


def _declare(g: Builder, around: _Surroundings, tokens: Dim, *, prefix: str) -> None:
    """The inputs that a stack reads; ``prefix`` begins the names of those of an encoder that a decoder reads."""
    embedding = around.embedding
    around.tokens = g.add_input(f"{prefix}{embedding.source}", embedding.input_type(tokens))
    if not embedding.has_length:
        kind = TensorType((BATCH, tokens), "int64")
        around.positions = g.add_input(f"{prefix}positions", kind)
        if around.mask == "bidirectional":
            around.padding = g.add_input(f"{prefix}attention_mask", kind)
        elif around.mask == "prefix":
            g.prefix_length = g.add_input("prefix_length", TensorType((BATCH,), "int64"))


def _stack(
    g: Builder, spec: Spec, around: _Surroundings, table: Param | None, section: str, *, is_shared: bool
) -> tuple[Value, Param | None]:
    """A stack from what it reads to its final norm, and its table. ``section`` begins its names where there are two stacks.

    A table that stacks share is made for the first and stands before both; the next is given it.
    """
    ids, embedding = around.tokens, around.embedding
    assert ids is not None, "a stack reads something"
    g.prefix = "" if is_shared and table is None else section
    given = {} if table is None else {"table": table}
    x, table = embedding.define(g, ids, vocab_size=around.tokenizer.ids(), **given)
    g.prefix = section
    length = g.max_position_embeddings
    if around.positions is None:
        (around.positions,) = g.emit(TokenIndex(), (x,))
        g.max_position_embeddings = embedding.num_tokens()
    g.sources["positions"] = around.positions
    g.mask, g.padding = around.mask, around.padding
    g.embedded = x
    g.ids, g.num_ids = (ids if ids.dtype == "int64" else None), around.tokenizer.ids()
    x = embedding.finish(g, around.position.embed(g, x), norm=around.norm)
    plans = spec.schedule(around.section)
    x = _layers(g, spec, around, plans, x)
    if around.final_norm:
        x = around.norm.define(g, "norm", x)
    g.prefix, g.max_position_embeddings = "", length
    return x, table


def _layers(g: Builder, spec: Spec, around: _Surroundings, plans: Iterable[LayerPlan], x: Value) -> Value:
    mixers = {name: around.fill(mixer) for name, mixer in spec.mixers.items()}
    readers = {name: owner for name, mixer in mixers.items() if (owner := mixer.shares_of()) is not None}
    for name, owner in readers.items():
        # Rows are rounded, and forgotten, as their owner's policy says.
        mixers[name] = mixers[name].model_copy(update={"cache": mixers[owner].cache})
    plans = tuple(plans)
    owners = owning_layers(plans, readers)
    g.num_layers = len(plans)
    streams = around.block.enter(g, x)
    rows: dict[int, tuple[Value, ...]] = {}
    for index, plan in enumerate(plans):
        names = [name for name in (plan.mixer, plan.cross, plan.ffn) if name is not None]
        label = g.prefix.replace(".", " ") + " + ".join(names)
        is_owner = index in owners.values()
        found = g.layer(
            index,
            _layer,
            *streams,
            key=(around.section, plan, is_owner),
            label=label,
            plan=plan,
            spec=spec,
            mixers=mixers,
            around=around,
            is_owner=is_owner,
            **{f"row_{number}": value for number, value in enumerate(rows[owners[index]] if index in owners else ())},
        )
        streams = (found,) if isinstance(found, Value) else tuple(found)
        if is_owner:
            assert plan.mixer is not None
            count = mixers[plan.mixer].shared_values
            streams, rows[index] = streams[:-count], streams[-count:]
    forgetful = {
        name: mixer for name, mixer in mixers.items() if mixer.cache.kept() is not None and name not in readers
    }
    if forgetful:
        _check_forgetting(g, forgetful)
    return around.block.leave(g, streams)


def _check_forgetting(g: Builder, mixers: Mapping[str, Mixer]) -> None:
    """A policy that forgets holds for every row of a mixer, whoever wrote its ops.

    Raises:
        GraphError: some rows are kept for good, or there are none.
    """
    for body in {inner.body for layer in g.root.calls() for inner in layer.body.calls() if inner.body.part == "mixer"}:
        mixer = mixers.get(body.label)
        growths = {state.growth for _, state in body.states()}
        if mixer is not None and ("append" in growths or "ring" not in growths):
            what = "keeps rows of all tokens" if "append" in growths else "keeps no row a token"
            policy = mixer.cache.kind_name
            raise GraphError(f"mixers.{body.label}: {mixer.kind_name} {what} under cache policy {policy}")


def _layer(
    g: Builder,
    *streams: Value,
    plan: LayerPlan,
    spec: Spec,
    mixers: Mapping[str, Mixer],
    around: _Surroundings,
    is_owner: bool,
    **rows: Value,
) -> Value | tuple[Value, ...]:
    """A layer: what it hands on, then, of an owner, what later layers read; ``rows`` are what it reads of an earlier one."""
    mixer = mixers[plan.mixer] if plan.mixer is not None else None
    crossing = mixers[plan.cross] if plan.cross is not None else None
    ffn: FFN | None = spec.ffns[plan.ffn] if plan.ffn is not None else None
    block: Block = mixer.block if mixer is not None else around.block
    if block.keeps_streams != around.block.keeps_streams:
        raise GraphError(f"{g.path}: {block.kind_name} can't stand between layers of {around.block.kind_name}")
    shared: list[Value] = []

    def place_mixer(value: Value) -> Value:
        assert mixer is not None
        if is_owner:
            value, *shared[:] = ruled(mixer, "mixer", plan.mixer, mixer.share, value)
            return value
        if rows:
            return ruled(mixer, "mixer", plan.mixer, mixer.read, value, *rows.values())
        return ruled(mixer, "mixer", plan.mixer, mixer.define, value)

    def place_cross(value: Value) -> Value:
        assert crossing is not None
        assert g.memory is not None, "a decoder stands behind its encoder"
        return ruled(crossing, "cross", plan.cross, crossing.cross, value, g.memory)

    def ruled(kind: Mixer, scope: str, name: str | None, define: Any, *values: Value) -> Any:
        policy: CachePolicy = kind.cache
        before = g.cache_dtype, g.state_dtype, g.kept, g.norm
        g.cache_dtype, g.state_dtype, g.kept, g.norm = policy.kv_dtype(), policy.state_dtype, policy.kept(), place_norm
        try:
            return g.scope(scope, define, *values, label=name or "", part="mixer")
        finally:
            g.cache_dtype, g.state_dtype, g.kept, g.norm = before

    def place_ffn(value: Value) -> Value:
        assert ffn is not None
        before, g.norm = g.norm, place_norm
        try:
            return g.scope("ffn", ffn.define, value, label=plan.ffn or "", part="ffn")
        finally:
            g.norm = before

    def place_norm(name: str, value: Value) -> Value:
        # The norm of a mixer's branch is the mixer's own, that of everything else the stack's.
        own = mixer if name.startswith("mixer") else crossing if name.startswith("cross") else None
        norm = own.norm if own is not None else around.norm
        return norm.define(g, name, value)

    branches: dict[str, Any] = {
        "mixer": place_mixer if mixer is not None else None,
        "ffn": place_ffn if ffn is not None else None,
        "norm": place_norm,
    }
    if crossing is not None:
        branches["cross"] = place_cross
    if block.keeps_streams:
        return (*block.layer(g, streams, **branches), *shared)
    x = block.define(g, streams[0], **branches)
    return (x, *shared) if shared else x


def _mtp(spec: Spec) -> Graph:
    """Multi-token prediction (DeepSeek-V3, arXiv 2412.19437): a layer over [norm(embedding) | norm(hidden)] projected to hidden.

    Its table and head are the model's own and are not counted again.
    """
    assert spec.mtp is not None
    g = Builder(max_position_embeddings=spec.max_position_embeddings)
    around = _Surroundings(spec, "mtp", spec.mtp)
    g.ids, g.num_ids = g.sources["input_ids"], around.tokenizer.ids()
    width: int = spec.embedding.hidden_size
    kind = TensorType((BATCH, SEQ, width))
    hidden, embedded = g.add_input("hidden_states", kind), g.add_input("input_embeddings", kind)
    joined = g.concat(around.norm.define(g, "enorm", embedded), around.norm.define(g, "hnorm", hidden))
    x = g.linear("eh_proj", joined, width)
    x = _layers(g, spec, around, spec.mtp_schedule(), x)
    x = around.norm.define(g, "norm", x)
    g.root.outputs.append(x)
    return Graph(
        name=f"{spec.name} mtp",
        root=g.root,
        dtype=spec.dtype,
        vocab_size=None,
        max_position_embeddings=spec.max_position_embeddings,
        num_layers=spec.mtp.num_layers,
        inputs=g.inputs,
        outputs={"hidden_states": x},
    )


def _plugins(spec: Spec) -> dict[str, tuple[str, str]]:
    """ "family:kind" -> (package, version) of every kind that the spec uses, sorted."""
    found: dict[str, tuple[str, str]] = {}

    def visit(value: Any) -> None:
        if isinstance(value, BaseModel):
            if isinstance(value, Kind) and value.family and value.kind_name:
                offered = registry.provider(value.family, value.kind_name)
                found[f"{value.family}:{value.kind_name}"] = offered or ("local", "0")
            for _, inner in value:
                visit(inner)
        elif isinstance(value, dict):
            for inner in typing_cast("dict[str, Any]", value).values():
                visit(inner)

    visit(spec)
    return dict(sorted(found.items()))
