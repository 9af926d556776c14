"""A spec becomes a graph: defaults are filled into kinds, kinds are traced, equal layers share one body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from typing import cast as typing_cast

from pydantic import BaseModel

from archc import registry
from archc.errors import GraphError
from archc.families import FFN, Block, CachePolicy, Mixer, Norm, Position
from archc.graph.graph import Graph
from archc.graph.vocabulary import Builder
from archc.ir.size import BATCH, SEQ
from archc.ir.values import TensorType, Value
from archc.spec.kind import Kind
from archc.spec.schema import LayerPlan, Spec, Stack


def expand(spec: Spec) -> Graph:
    """The graph of a spec: sizes symbolic, weights and states declared, nothing allocated.

    Raises:
        GraphError: a kind builds something illegal; the message names the scope and the op.
    """
    g = Builder(max_position_embeddings=spec.max_position_embeddings)
    ids = spec.tokenizer.ids()
    x, table = spec.embedding.define(g, g.sources["input_ids"], vocab_size=ids)
    surroundings = _Surroundings(spec, spec.stack)
    x = spec.embedding.finish(g, surroundings.position.embed(g, x), norm=surroundings.norm)
    x = _layers(g, spec, surroundings, spec.schedule(), x)
    if surroundings.final_norm:
        x = surroundings.norm.define(g, "norm", x)
    output = spec.head.define(g, x, table=table, tied=spec.embedding.tied())
    g.root.outputs.append(output)
    return Graph(
        name=spec.name,
        root=g.root,
        dtype=spec.dtype,
        vocab_size=ids,
        max_position_embeddings=spec.max_position_embeddings,
        num_layers=spec.stack.num_layers,
        inputs=g.inputs,
        outputs={spec.head.output: output},
        plugins=_plugins(spec),
        policies=surroundings.policies(spec),
        mtp=_mtp(spec) if spec.mtp is not None else None,
    )


class _Surroundings:
    """The defaults of a stack: the nearest statement of position, norm, cache and block."""

    def __init__(self, spec: Spec, stack: Stack) -> None:
        self.position: Position = stack.position or spec.position
        self.norm: Norm = stack.norm or spec.norm
        self.cache: CachePolicy = stack.cache or spec.cache
        self.block: Block = stack.block or spec.stack.block
        self.final_norm = self.block.final_norm_default if stack.final_norm is None else stack.final_norm

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


def _layers(g: Builder, spec: Spec, around: _Surroundings, plans: Iterable[LayerPlan], x: Value) -> Value:
    mixers = {name: around.fill(mixer) for name, mixer in spec.mixers.items()}
    plans = tuple(plans)
    g.num_layers = len(plans)
    for index, plan in enumerate(plans):
        mixer = mixers[plan.mixer] if plan.mixer is not None else None
        ffn = spec.ffns[plan.ffn] if plan.ffn is not None else None
        label = " + ".join(name for name in (plan.mixer, plan.ffn) if name is not None)
        x = g.layer(index, _layer, x, key=plan, label=label, plan=plan, mixer=mixer, ffn=ffn, around=around)
    forgetful = {name: mixer for name, mixer in mixers.items() if mixer.cache.kept() is not None}
    if forgetful:
        _check_forgetting(g, forgetful)
    return x


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
    g: Builder, x: Value, *, plan: LayerPlan, mixer: Mixer | None, ffn: FFN | None, around: _Surroundings
) -> Value:
    block: Block = mixer.block if mixer is not None else around.block

    def place_mixer(value: Value) -> Value:
        assert mixer is not None
        policy: CachePolicy = mixer.cache
        before = g.cache_dtype, g.state_dtype, g.kept, g.norm
        g.cache_dtype, g.state_dtype, g.kept, g.norm = policy.kv_dtype(), policy.state_dtype, policy.kept(), place_norm
        try:
            return g.scope("mixer", mixer.define, value, label=plan.mixer or "", part="mixer")
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
        norm = mixer.norm if mixer is not None and name.startswith("mixer") else around.norm
        return norm.define(g, name, value)

    return block.define(
        g,
        x,
        mixer=place_mixer if mixer is not None else None,
        ffn=place_ffn if ffn is not None else None,
        norm=place_norm,
    )


def _mtp(spec: Spec) -> Graph:
    """Multi-token prediction (DeepSeek-V3, arXiv 2412.19437): a layer over [norm(embedding) | norm(hidden)] projected to hidden.

    Its table and head are the model's own and are not counted again.
    """
    assert spec.mtp is not None
    g = Builder(max_position_embeddings=spec.max_position_embeddings)
    around = _Surroundings(spec, spec.mtp)
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
