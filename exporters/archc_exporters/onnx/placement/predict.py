"""Which provider takes each node, as onnxruntime decides it: by its registry, by attributes, and by where shapes are computed.

The rules are those of onnxruntime's partitioner for [CUDA, CPU] without graph optimisation: fusions change which nodes
there are, and seldom where they run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from archc_exporters.onnx.placement.element_types import (
    bodies,
    constant,
    element_types,
    opsets,
    schema_of,
    types_of_formals,
)
from archc_exporters.onnx.placement.functions import body_model
from archc_exporters.onnx.placement.refusals import refusal
from archc_exporters.onnx.placement.schemas import Schema
from archc_exporters.onnx.placement.tables import RELEASE, Kernel, kernels

SMALL_ELEMENTS = 100
"""An initializer of up to so many elements keeps nobody from computing a shape on the CPU."""
NEVER_ON_CPU = frozenset(("float16", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"))
"""A node that reads one of these is no shape arithmetic."""


@dataclass(slots=True, kw_only=True)
class Site:
    """A node, where it goes, and why.

    Attributes:
        provider: ``cuda`` or ``cpu``; empty where no provider can run it.
        reason: empty for the provider that was asked for, else ``no-kernel``, ``kernel-refuses-node``, ``cpu-preferred``
            (shape arithmetic, harmless), ``decomposed``, ``no-such-op``, or ``cast`` (float16 computed in float32).
        body: op types that the node is decomposed into, because no provider has a kernel for it.
    """

    node: onnx.NodeProto
    name: str
    schema: Schema | None
    kernel: Kernel | None = None
    provider: str = ""
    reason: str = ""
    detail: str = ""
    body: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Scope:
    """A graph, the sites of its nodes, and the scopes of the graphs inside them."""

    graph: onnx.GraphProto
    outer: Scope | None = None
    sites: list[Site] = field(default_factory=list)
    inner: dict[int, list[Scope]] = field(default_factory=dict)
    """Number of a site -> scopes of its node's bodies."""
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    """With the values of Constant nodes."""

    def __post_init__(self) -> None:
        self.initializers = {tensor.name: tensor for tensor in self.graph.initializer}

    def all_scopes(self) -> Iterator[Scope]:
        """This scope, and those inside it."""
        yield self
        for scopes in self.inner.values():
            for scope in scopes:
                yield from scope.all_scopes()

    def all_sites(self) -> Iterator[Site]:
        """Sites of this scope and of those inside it."""
        for scope in self.all_scopes():
            yield from scope.sites

    def initializer(self, name: str) -> onnx.TensorProto | None:
        """The initializer of that name here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.initializers:
                return scope.initializers[name]
            scope = scope.outer
        return None

    def implicit_inputs(self, number: int) -> set[str]:
        """Values from outside that the bodies of a node read."""
        return {name for scope in self.inner.get(number, ()) for name in free_values(scope.graph)}


def predict(model: onnx.ModelProto, provider: str) -> Scope:
    """Sites of every node; the model's weights are not read.

    Raises:
        ArchcError: there is no table for the provider.
    """
    types, versions = element_types(model), opsets(model)
    root = _scope(model.graph, None)
    for number, site in enumerate(root.all_sites()):
        site.name = site.node.name or f"{site.node.op_type}#{number}"
        _choose(site, provider, types, versions)
    if provider == "cuda":
        for scope in root.all_scopes():
            _keep_shapes_on_the_host(scope, types)
    return root


def free_values(graph: onnx.GraphProto) -> set[str]:
    """Values that a body reads and does not make."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    used = {value.name for value in graph.output}
    for node in graph.node:
        own.update(node.output)
        used.update(node.input)
        for body in bodies(node):
            used |= free_values(body)
    return used - own


def _scope(graph: onnx.GraphProto, outer: Scope | None) -> Scope:
    scope = Scope(graph=graph, outer=outer)
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            # onnxruntime makes initializers of them when it reads the file.
            scope.initializers[node.output[0]] = constant(node)
            continue
        inner = [_scope(body, scope) for body in bodies(node)]
        if inner:
            scope.inner[len(scope.sites)] = inner
        scope.sites.append(Site(node=node, name=node.name, schema=None))
    return scope


def _choose(site: Site, provider: str, types: Mapping[str, str], versions: Mapping[str, int]) -> None:
    node = site.node
    site.schema = schema_of(node, versions)
    if site.schema is None:
        site.reason, site.detail = "no-such-op", f"onnxruntime {RELEASE} knows no {_called(node)} under this opset"
        return
    schema = site.schema
    variables = types_of_formals(node, schema, types)

    def find(where: str, kinds: Mapping[str, str | None]) -> Kernel | None:
        return kernels(where).find(schema.domain, schema.op, schema.since, kinds)

    site.kernel = find(provider, variables)
    refused = refusal(node) if provider == "cuda" and site.kernel else ""
    if site.kernel and not refused:
        site.provider = provider
        return
    site.reason = "kernel-refuses-node" if refused else "no-kernel"
    site.detail = refused or kernels(provider).objection(schema.domain, schema.op, schema.since, variables)
    if provider == "cuda":
        site.kernel = find("cpu", variables)
    if provider == "cuda" and site.kernel:
        site.provider = "cpu"
    elif schema.has_function:
        _decompose(site, schema, provider, types, versions)
    elif "float16" in variables.values():
        # onnxruntime puts casts around a node that has a kernel in float32 only; it does so for float16 alone.
        widened = {key: "float" if kind == "float16" else kind for key, kind in variables.items()}
        site.kernel = find("cpu", widened)
        if site.kernel is not None:
            site.provider = "cpu"
            site.reason = "cast" if provider == "cpu" else site.reason
            site.detail += "; computed in float32 between casts"


def _decompose(
    site: Site, schema: Schema, provider: str, types: Mapping[str, str], versions: Mapping[str, int]
) -> None:
    """Where the nodes of the function go: one that can't run stops the file, one on the CPU takes values there."""
    site.reason = "decomposed"
    model = body_model(site.node, schema, types, versions.get("", 1))
    if model is None:
        site.detail += "; what its function is made of is not known"
        return
    inner = list(predict(model, provider).all_sites())
    site.body = tuple(part.node.op_type for part in inner)
    found = {part.provider for part in inner if part.reason != "cpu-preferred"}
    site.provider = "" if "" in found else "cpu" if "cpu" in found else provider


def _keep_shapes_on_the_host(scope: Scope, types: Mapping[str, str]) -> None:
    """What reads only values on the host goes to the CPU, beginning with the outputs that kernels leave there."""
    inputs = {value.name for value in scope.graph.input} - {tensor.name for tensor in scope.graph.initializer}
    consumers: dict[str, list[int]] = {}
    for number, site in enumerate(scope.sites):
        for name in (*site.node.input, *scope.implicit_inputs(number)):
            consumers.setdefault(name, []).append(number)
    host: set[str] = set()
    candidates: set[int] = set()

    def leave_on_host(names: Sequence[str]) -> None:
        host.update(names)
        for name in names:
            if name:
                candidates.update(consumers.get(name, ()))

    for site in scope.sites:
        if site.provider == "cuda" and site.kernel is not None:
            leave_on_host([name for number, name in enumerate(site.node.output) if number in site.kernel.host_out])
    # The nodes of a graph are in topological order, so one pass sees every candidate after its producers.
    for number, site in enumerate(scope.sites):
        if number not in candidates:
            continue
        if site.provider == "cuda" and site.kernel is not None:
            if not all(_is_light(scope, site, i, name, inputs, host, types) for i, name in enumerate(site.node.input)):
                continue
            site.provider, site.reason = "cpu", "cpu-preferred"
            site.detail = "it reads only values that are on the host"
        elif site.provider == "cuda":
            continue
        leave_on_host(site.node.output)


def _is_light(
    scope: Scope, site: Site, number: int, name: str, inputs: set[str], host: set[str], types: Mapping[str, str]
) -> bool:
    if types.get(name) in NEVER_ON_CPU:
        return False
    tensor = scope.initializer(name)
    if tensor is not None and _elements(tensor) <= SMALL_ELEMENTS:
        return True
    if name in inputs:
        return True
    assert site.kernel is not None
    return name in host and number not in site.kernel.host_in


def _elements(tensor: onnx.TensorProto) -> int:
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count


def _called(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
