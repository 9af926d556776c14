"""Memcpy nodes that onnxruntime will put between providers, as its own pass decides it, graph by graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from archc_exporters.onnx.placement.predict import Scope, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A value that is copied at every run.

    Attributes:
        op: ``MemcpyFromHost`` brings it to the GPU, ``MemcpyToHost`` back.
        made_by: the node that makes it; ``input`` for an input of the graph.
        read_by: a node that wants it on the other side.
    """

    op: Literal["MemcpyFromHost", "MemcpyToHost"]
    value: str
    made_by: str
    read_by: str


def copies(root: Scope) -> tuple[Copy, ...]:
    """Every Memcpy node that a placement on CUDA and CPU needs."""
    return tuple(copy for scope in root.all_scopes() for copy in _of_scope(scope))


def _of_scope(scope: Scope) -> list[Copy]:
    on_device: dict[str, str] = {}
    on_host: dict[str, str] = {}
    made_on_device: dict[str, str] = {}
    made_on_host: dict[str, str] = {}
    for site in scope.sites:
        for number, name in enumerate(site.node.input):
            if name:
                (on_host if _reads_on_host(site, number) else on_device).setdefault(name, site.name)
        for number, name in enumerate(site.node.output):
            if name:
                (made_on_host if _leaves_on_host(site, number) else made_on_device)[name] = site.name
    found: list[Copy] = []
    # What comes from outside is brought by the caller, or by the control-flow node, to the one side that wants it; only
    # a value wanted on both sides needs a node. Initializers are stored on both.
    outside = dict.fromkeys(value.name for value in scope.graph.input)
    if scope.outer is not None:
        outside |= dict.fromkeys(sorted(on_device.keys() - made_on_host.keys() - made_on_device.keys()))
    for name in outside:
        if name in on_device and name in on_host and scope.initializer(name) is None:
            found.append(Copy(op="MemcpyFromHost", value=name, made_by="input", read_by=on_device[name]))
    for name, maker in made_on_host.items():
        if name in on_device:
            found.append(Copy(op="MemcpyFromHost", value=name, made_by=maker, read_by=on_device[name]))
    for name, maker in made_on_device.items():
        if name in on_host:
            found.append(Copy(op="MemcpyToHost", value=name, made_by=maker, read_by=on_host[name]))
    return found


def _reads_on_host(site: Site, number: int) -> bool:
    return site.provider != "cuda" or (site.kernel is not None and number in site.kernel.host_in)


def _leaves_on_host(site: Site, number: int) -> bool:
    return site.provider != "cuda" or (site.kernel is not None and number in site.kernel.host_out)
