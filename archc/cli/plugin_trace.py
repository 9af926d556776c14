"""The ops, weights and states that a kind comes to: as it stands in a spec, traced by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from archc import registry
from archc.cli.plugin_usage import kinds_in, shipped
from archc.errors import ArchcError, GraphError
from archc.expansion import expand
from archc.families import FFN, Block, Embedding, Head, Mixer, Norm, Position, Router, Score
from archc.graph.graph import walk_scopes
from archc.graph.vocabulary import Builder
from archc.ir.size import BATCH, SEQ
from archc.ir.values import Node, Param, State, TensorType, Value
from archc.spec.kind import Kind
from archc.spec.load import loads_spec
from archc.spec.schema import Spec
from archc.spec.slots import MARKER
from archc.testing.placing import PLACES, spec_text


class Trace:
    """The nodes that a kind places, by the path of their scope; ``where`` names the spec, ``keys`` are the kind's there."""

    def __init__(self, nodes: list[tuple[str, Node]], where: str, keys: str) -> None:
        self.nodes, self.where, self.keys = nodes, where, keys

    def weights(self) -> Iterator[tuple[str, Param]]:
        """(path, weight) of what the kind owns."""
        for scope, node in self.nodes:
            if not getattr(node.op, "tied", False):
                yield from ((f"{scope}.{p.name}".lstrip("."), p) for p in node.params.values())

    def states(self) -> Iterator[tuple[str, State]]:
        """(path, state) of what the kind keeps between calls."""
        for scope, node in self.nodes:
            yield from ((f"{scope}.{s.name}".lstrip("."), s) for s in node.states.values())


def in_shipped_specs(model: type[Kind]) -> Trace | None:
    """The kind as the first shipped spec has it that names it; None where none does."""
    for name, spec in shipped():
        found = next((kind for kind in kinds_in(spec) if type(kind) is model), None)
        if found is not None:
            return _traced(spec, found, name)
    return None


def in_a_spec(family: str, name: str, model: type[Kind], values: Sequence[str]) -> Trace:
    """The kind in a tiny spec, with ``values`` (``key=value``), and guesses for what is required beside them.

    Raises:
        SpecError: the keys are wrong, or could not be guessed.
        PluginError: a spec has no place for kinds of this family.
    """
    given = {value.partition("=")[0] for value in values}
    text = spec_text(family, name, {key: value for key, value in _guesses(model).items() if key not in given})
    spec = loads_spec(text, file=f"{family}.{name}", overrides=[f"{PLACES[family]}.{value}" for value in values])
    found = next(kind for kind in kinds_in(spec) if type(kind) is model)
    return _traced(spec, found, spec.name)


def _traced(spec: Spec, kind: Kind, where: str) -> Trace:
    nodes = list(_placed(spec, kind) if isinstance(kind, Mixer | FFN) else _alone(spec, kind))
    keys = ", ".join(f"{name}: {_shown(value)}" for name, value in kind if name in kind.model_fields_set)
    return Trace(nodes, where, keys)


def _placed(spec: Spec, kind: Mixer | FFN) -> Iterator[tuple[str, Node]]:
    """The nodes of the first layer that holds a mixer or a feed-forward."""
    section: Mapping[str, Any] = spec.mixers if isinstance(kind, Mixer) else spec.ffns
    labels = {name for name, placed in section.items() if placed is kind}
    part = "mixer" if isinstance(kind, Mixer) else "ffn"
    for body in expand(spec).bodies():
        if body.part == part and body.label in labels:
            yield from walk_scopes(body, "")
            return


def _alone(spec: Spec, kind: Kind) -> Iterator[tuple[str, Node]]:
    """The nodes that the methods of a kind place, called as the families say."""
    g = Builder(max_position_embeddings=spec.max_position_embeddings)
    width: int = spec.embedding.hidden_size
    x = g.add_input("x", TensorType((BATCH, SEQ, width)))
    g.mask = "bidirectional" if spec.main.mask == "bidirectional" else "causal"
    g.ids, g.num_ids = g.sources["input_ids"], spec.tokenizer.ids()
    norm: Norm = spec.norm
    try:
        match kind:
            case Norm():
                kind.define(g, "norm", x)
            case Block() if kind.keeps_streams:
                kind.leave(g, g.layer(0, _layer_alone, *kind.enter(g, x), key=kind.kind_name, block=kind))
            case Block():
                kind.define(g, x, mixer=_same, ffn=_same, norm=lambda name, value: value)
            case Position():
                kind.rotate(g, kind.embed(g, x), head_dim=width)
            case Embedding():
                read = g.sources.get(kind.source) or g.add_input(kind.source, kind.input_type(SEQ))
                vectors, _ = kind.define(g, read, vocab_size=spec.tokenizer.ids())
                kind.finish(g, vectors, norm=norm)
            case Head():
                table = Param("weight", (spec.tokenizer.ids(), width))
                g.norm = lambda name, value: norm.define(g, name, value)
                kind.define(g, x, table=table, tied=False)
            case Router():
                kind.choose(g, x, *_experts(spec, kind))
            case Score():
                wide = g.add_input("queries", TensorType((BATCH, SEQ, kind.width(width))))
                kind.attend(g, "attention", wide, wide, x, num_heads=1)
            case _:
                return
    except (GraphError, TypeError):
        # A kind that needs more around it than this shows nothing, rather than something wrong.
        return
    yield from walk_scopes(g.root, "")


def _layer_alone(g: Builder, *streams: Value, block: Block) -> tuple[Value, ...]:
    return block.layer(g, streams, mixer=_same, ffn=_same, norm=lambda name, value: value)


def _same(value: Value) -> Value:
    return value


def _experts(spec: Spec, router: Kind) -> tuple[int, int]:
    """(number of experts, experts a token) of the mixture that holds a router."""
    for ffn in spec.ffns.values():
        if getattr(ffn, "router", None) is router:
            return ffn.num_experts, ffn.num_experts_per_tok
    raise GraphError("no mixture of experts holds the router")


def _guesses(model: type[Kind]) -> dict[str, Any]:
    """A value for each required key, by its type alone."""
    schema = model.model_json_schema()
    members: dict[str, Any] = schema.get("properties", {})
    return {name: _guess(name, members[name]) for name in schema.get("required", ())}


def _guess(name: str, schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if MARKER in schema:
        return _plain_kind(schema[MARKER]["family"], schema[MARKER]["default_kind"])
    kind = schema.get("type")
    if kind == "integer":
        usual = 8 if name.endswith(("_dim", "_rank")) else 16 if name.endswith("_size") else 2
        return max(usual, schema.get("minimum", 0))
    return {"number": 1.0, "boolean": True, "string": "x"}.get(str(kind))


def _plain_kind(family: str, default: str | None) -> Any:
    """A kind of a family that needs no keys, by its name; else the first with its own guesses."""
    names = registry.names(family)
    for name in (default, "none", *names):
        if name is None or name not in names:
            continue
        model: type[Kind] = registry.load(family, name)
        return {"kind": name, **_guesses(model)}
    raise ArchcError(f"no {family} is installed")


def _shown(value: Any) -> str:
    if isinstance(value, Kind):
        return value.kind_name
    return str(value).lower() if isinstance(value, bool) else str(value)
