"""``check_kind``: the contract of one kind, for its author. It is what this project's own kinds are held to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archc import registry
from archc.errors import ArchcError, CheckFailedError, PluginError
from archc.expansion import expand
from archc.spec.kind import Kind
from archc.spec.load import loads_spec
from archc.testing.contract import BATCH, FIRST, LENGTH, SECOND, Checked, check_spec, checks_of
from archc.testing.onnx_values import check_onnx, missing
from archc.testing.placing import spec_text
from archc.testing.whole import passes

ONNX_TOLERANCE = 10
"""How many times the tolerance of torch's own logits onnxruntime's get: its kernels sum in another order."""

WAYS = {
    "whole": ((LENGTH,) * BATCH,),
    "chunks": ((FIRST,) * BATCH, (SECOND,) * BATCH, (LENGTH - FIRST - SECOND,) * BATCH),
    "prefill and decode": ((FIRST,) * BATCH, *((1,) * BATCH for _ in range(LENGTH - FIRST))),
    "ragged rows": ((FIRST, 4), (2, SECOND), (1, 1), (0, 3)),
}


@dataclass(frozen=True)
class KindReport:
    """What was checked of a kind, and in which spec; ``str()`` of it is a line a check."""

    kind: str
    spec: str
    checks: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"{self.kind}:", *(f"  {check}" for check in self.checks)))


def check_kind(
    kind: type[Kind] | str,
    keys: Mapping[str, Any] | None = None,
    *,
    around: Mapping[str, Any] | None = None,
    spec: str | None = None,
    onnx: bool | str = True,
    tolerance: float = 2e-5,
) -> KindReport:
    """Check that a kind does what every kind promises: its estimate is what is built, its cached forward the uncached one.

    ``kind`` is ``"family.name"`` of an installed kind, or a class, installed or not. It is placed with its YAML ``keys`` in a
    tiny spec, whose other sections ``around`` replaces, or in the text ``spec``. Then all of ``check_spec`` holds, and, where
    onnxruntime is installed, the exported file gives torch's outputs in float32: whole, in chunks, token by token and
    ragged; padded on either side where a stack is bidirectional, or an encoder's tokens are. A kind that ONNX can't say
    passes with ``onnx="a part of the reason"``; False leaves ONNX out.

    Raises:
        AssertionError: a promise does not hold; the message says which.
        SpecError: the keys are wrong.
        PluginError: no such kind is installed.
    """
    family, name, unregistered = _identity(kind)
    with registry.temporary(unregistered):
        text = spec if spec is not None else spec_text(family, name, keys or {}, around)
        graph = expand(loads_spec(text))
        assert f"{family}:{name}" in graph.plugins, f"the spec does not name the {family} {name}"
        checked = check_spec(text, tolerance=tolerance)
        said = _onnx(checked, onnx, ONNX_TOLERANCE * tolerance)
    return KindReport(f"{family}.{name}", text, (*checks_of(checked.graph), said))


def _onnx(checked: Checked, onnx: bool | str, tolerance: float) -> str:
    if onnx is False:
        return "ONNX: left out"
    if (absent := missing()) is not None:
        return f"ONNX: not checked ({absent})"
    try:
        error = check_onnx(checked.graph, checked.model, checked.ids, WAYS, tolerance=tolerance, given=checked.given)
    except CheckFailedError:
        raise
    except ArchcError as refused:
        refusal = str(refused)
    else:
        assert onnx is True, f"ONNX should refuse it ({onnx!r}), and exports it"
        ways = passes(checked.graph) if checked.graph.mask == "bidirectional" else WAYS
        return f"ONNX = torch: {', '.join(ways)} (float32, {error:.1e} of the largest output)"
    hint = "where that is right, say so: check_kind(…, onnx='a part of the reason')"
    assert onnx is not True, f"ONNX refuses it: {refusal} ({hint})"
    assert str(onnx) in refusal, f"ONNX refuses it for another reason than {onnx!r}: {refusal}"
    return f"ONNX: refused as it should be ({refusal})"


def _identity(kind: type[Kind] | str) -> tuple[str, str, dict[tuple[str, str], Any]]:
    """(family, name, what has to be registered for the check) of a kind."""
    if isinstance(kind, str):
        family, _, name = kind.partition(".")
        if family not in registry.FAMILIES or not name:
            raise PluginError(
                f"a kind is named as family.name (found {kind!r}); families: {', '.join(registry.FAMILIES)}"
            )
        registry.load(family, name)
        return family, name, {}
    family = kind.family
    assert family, f"{kind.__name__} is no kind: it should subclass a family of archc.families"
    if kind.kind_name and registry.find(family, kind.kind_name) is kind:
        return family, kind.kind_name, {}
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind.__name__).lower()
    if registry.find(family, name) is kind:
        return family, name, {}
    while name in registry.names(family):
        name = f"{name}_checked"
    return family, name, {(family, name): kind}
