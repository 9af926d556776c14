"""What a placement says: nodes by provider, what is on the CPU and why, copies, and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from archc_exporters.onnx.placement.copies import Copy, copies
from archc_exporters.onnx.placement.predict import Scope, Site
from archc_exporters.onnx.placement.rules import SEVERITIES, Case, Finding, Severity, findings
from archc_exporters.onnx.placement.shapes import Shapes
from archc_exporters.onnx.placement.tables import RELEASE

HARMLESS = "cpu-preferred"
"""Reason of nodes that onnxruntime keeps on the CPU on purpose: shape arithmetic."""
SHOWN_NODES = 3
ADVICE = {
    ("GroupQueryAttention", "T is float,"): "float16 or bfloat16; in float32 TensorScatter and Attention-24",
    ("SwiGLU", ""): "QuickGelu with alpha 1, and Mul",
    ("Swish", ""): "com.microsoft QuickGelu with its alpha, one kernel",
    ("GatedDeltaNet", ""): "com.microsoft LinearAttention",
    ("RMSNormRotary", ""): "RMSNormalization and RotaryEmbedding",
    ("MoEGroupRouter", ""): "Sigmoid, TopK and ScatterElements",
}
"""(op, words of the reason) -> the nearest legal choice, where no kernel takes a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffNode:
    """A node that is not on the provider that was asked for.

    Attributes:
        provider: where it is; empty where nothing can run it.
        harmless: shape arithmetic, which onnxruntime keeps on the CPU on purpose.
    """

    name: str
    op: str
    provider: str
    reason: str
    detail: str
    harmless: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit that nodes of one op meet: what happens, why, and the nearest legal choice."""

    op: str
    severity: Severity
    message: str
    choice: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposed:
    """A node that no provider has a kernel for, and the op types that replace it."""

    name: str
    op: str
    body: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which provider takes which nodes of a file.

    Attributes:
        provider: that was asked for, ``cuda`` or ``cpu``.
        source: who says so: the kernel registry of a release, or a session on the device that is present.
        nodes: op -> provider -> nodes.
        off: nodes that are elsewhere, harmless ones included.
        memcpy: values copied between providers at every run.
    """

    provider: str
    source: str
    release: str
    nodes: dict[str, dict[str, int]]
    off: tuple[OffNode, ...]
    memcpy: tuple[Copy, ...]
    decomposed: tuple[Decomposed, ...]
    limits: tuple[Limit, ...]

    @property
    def away(self) -> tuple[OffNode, ...]:
        """Nodes that leave the provider, or that nothing runs; shape arithmetic does not count."""
        return tuple(node for node in self.off if not node.harmless)

    def counts(self) -> dict[str, int]:
        """Provider -> nodes."""
        total: Counter[str] = Counter()
        for by_provider in self.nodes.values():
            total.update(by_provider)
        return dict(total)

    def objections(self) -> list[str]:
        """Why the file does not run wholly on its provider, a line each; empty where it does."""
        return [
            f"{limit.op} {'fails' if limit.severity == 'fails' else 'leaves the GPU'}: {limit.message}"
            + (f"; instead: {limit.choice}" if limit.choice else "")
            + f" ({_joined(limit.nodes)})"
            for limit in self.limits
            if limit.severity in ("fails", "leaves the GPU")
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``."""
        return asdict(self) | {"counts": self.counts()}


def report(root: Scope, *, provider: str, types: Mapping[str, str], shapes: Shapes) -> Placement:
    """The placement that was predicted for a model."""
    counts: dict[str, Counter[str]] = {}
    sites = list(root.all_sites())
    for site in sites:
        counts.setdefault(op_name(site), Counter())[site.provider] += 1
    return Placement(
        provider=provider,
        source=f"the kernel registry of onnxruntime {RELEASE}",
        release=RELEASE,
        nodes=sorted_counts(counts),
        off=tuple(_off(site) for site in sites if site.provider != provider or site.reason == "cast"),
        memcpy=copies(root) if provider == "cuda" else (),
        decomposed=tuple(
            Decomposed(name=s.name, op=op_name(s), body=s.body) for s in sites if s.reason == "decomposed"
        ),
        limits=limits(root, provider=provider, types=types, shapes=shapes),
    )


def limits(root: Scope, *, provider: str, types: Mapping[str, str], shapes: Shapes) -> tuple[Limit, ...]:
    """The limits that nodes meet, the worst first, one for all nodes of an op that meet the same."""
    met: list[tuple[str, str, Finding]] = []
    for scope in root.all_scopes():
        for site in scope.sites:
            case = Case(site=site, provider=provider, types=types, shapes=shapes, is_inside=scope.outer is not None)
            met += [(op_name(site), site.name, finding) for finding in (*findings(case), *_placed(site, provider))]
    return grouped(met)


def grouped(met: Iterable[tuple[str, str, Finding]]) -> tuple[Limit, ...]:
    """(op, node, finding), those of one op that say the same as one limit."""
    groups: dict[tuple[str, Finding], list[str]] = {}
    for op, name, finding in met:
        groups.setdefault((op, finding), []).append(name)
    found = [
        Limit(op=op, severity=finding.severity, message=finding.message, choice=finding.choice, nodes=tuple(names))
        for (op, finding), names in groups.items()
    ]
    return tuple(sorted(found, key=lambda limit: SEVERITIES.index(limit.severity)))


def leaving(op: str, detail: str) -> Finding:
    """The finding for a node that is not on the GPU."""
    return Finding("leaves the GPU", detail, _advice(op, detail))


def sorted_counts(counts: Mapping[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """Op -> provider -> nodes, the most frequent op first."""
    return {op: dict(counts[op]) for op in sorted(counts, key=lambda op: (-sum(counts[op].values()), op))}


def op_name(site: Site) -> str:
    """The op type, with its domain where that is not the standard one."""
    return f"{site.node.domain}.{site.node.op_type}" if site.node.domain else site.node.op_type


def _placed(site: Site, provider: str) -> Iterable[Finding]:
    if site.reason == "decomposed" and site.provider == provider:
        parts = ", ".join(dict.fromkeys(site.body))
        yield Finding("slow", f"no kernel: replaced by {parts}", _advice(op_name(site), site.detail))
    elif not site.provider:
        yield Finding("fails", site.detail or "no kernel", _advice(op_name(site), site.detail))
    elif site.provider != provider and site.reason != HARMLESS:
        yield leaving(op_name(site), site.detail)


def _advice(op: str, detail: str) -> str:
    short = op.rpartition(".")[2]
    for (name, mark), text in ADVICE.items():
        if name == short and mark in detail:
            return text
    return "float16 or float32" if "is bfloat16, and" in detail else ""


def _off(site: Site) -> OffNode:
    return OffNode(
        name=site.name,
        op=op_name(site),
        provider=site.provider,
        reason=site.reason,
        detail=site.detail,
        harmless=site.reason in (HARMLESS, "cast"),
    )


def _joined(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
    return ", ".join(names[:SHOWN_NODES]) + more


def placed_together(found: Sequence[Placement]) -> Placement | None:
    """Where the nodes of several files go; None where none was asked."""
    if not found:
        return None
    nodes: dict[str, dict[str, int]] = {}
    for each in found:
        for op, counts in each.nodes.items():
            nodes[op] = dict(Counter(nodes.get(op, {})) + Counter(counts))
    return replace(
        found[0],
        nodes=nodes,
        off=tuple(node for each in found for node in each.off),
        memcpy=tuple(copy for each in found for copy in each.memcpy),
        decomposed=tuple(one for each in found for one in each.decomposed),
        limits=tuple(limit for each in found for limit in each.limits),
    )
