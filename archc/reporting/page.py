"""The page as a text: a skeleton with the specs' texts escaped, their data, the styles and the script."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from archc._version import __version__
from archc.drawing.svg import forms, style
from archc.estimation.conventions import CONVENTIONS
from archc.planning.hardware import Device, devices
from archc.planning.serving.estimate import MEMORY_UTILIZATION, OVERHEAD_BYTES
from archc.planning.timing.conventions import TIME_CONVENTIONS
from archc.planning.timing.roofline import COMPUTE_EFFICIENCY, LINK_EFFICIENCY, MEMORY_EFFICIENCY
from archc.reporting.drawing import inlined
from archc.reporting.model import Model
from archc.reporting.ranks import CUTS, PP, TP
from archc.units import DTYPE_BITS, SPEC_DTYPES

SCRIPTS = ("numbers", "forms", "costs", "ranks", "time", "charts", "tables", "page", "controls")
"""The page's script, in order: what comes later uses what comes before."""

BESIDE = 3
"""Columns of the overview that leave room for charts at their side."""

HUES = 8
"""Colours of curves in the style; more models repeat them with dashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the controls stand at first; None is what the spec says. ``gpu`` is a device's name in the catalogue, or empty."""

    batch_size: int
    max_model_len: int
    source_len: int | None
    dtype: str | None
    kv_cache_dtype: str | None
    block_size: int | None
    gpu: str
    tp: int
    pp: int
    ep: int
    workspace_bytes: int

    def to_json(self) -> dict[str, str | None]:
        """By the ids of the controls, as texts."""
        numbers = {
            "batch": self.batch_size,
            "length": self.max_model_len,
            "source": self.source_len,
            "block": self.block_size,
            "tp": self.tp,
            "pp": self.pp,
            "workspace": self.workspace_bytes,
        }
        choices = {"dtype": self.dtype, "kvDtype": self.kv_cache_dtype, "gpu": self.gpu or None}
        return {
            **{name: None if number is None else str(number) for name, number in numbers.items()},
            **choices,
            "experts": "ep" if self.ep > 1 else None,
            "computeEfficiency": str(COMPUTE_EFFICIENCY),
            "memoryEfficiency": str(MEMORY_EFFICIENCY),
            "linkEfficiency": str(LINK_EFFICIENCY),
        }


def page(models: Sequence[Model], settings: Settings) -> str:
    """The HTML of a report."""
    script = '(() => {\n"use strict";\n' + "\n".join(_asset(f"{name}.js") for name in SCRIPTS) + "})();"
    names = [model.name for model in models]
    data = {
        "models": [model.data for model in models],
        "commands": [model.command for model in models],
        "settings": settings.to_json(),
        "dtype_bits": DTYPE_BITS,
        "devices": {name: _device(device) for name, device in devices().items()},
        "cuts": CUTS,
        "pp": PP,
        "overhead_bytes": OVERHEAD_BYTES,
        "memory_utilization": MEMORY_UTILIZATION,
    }
    lead = models[0].description if len(models) == 1 else f"{len(models)} specs side by side"
    return Template(_asset("page.html")).substitute(
        title=escape(f"{', '.join(names)} – archc report"),
        heading=escape(", ".join(names)),
        lead=escape(lead),
        style=_style(),
        script=script,
        script_hash=_digest(script),
        version=escape(__version__),
        controls=_controls(models),
        overview="beside" if len(models) <= BESIDE else "below",
        models="\n".join(_model(model, place, is_only=len(models) == 1) for place, model in enumerate(models)),
        conventions="\n".join(
            f"<dt>{escape(topic)}</dt><dd>{escape(text)}</dd>" for topic, text in _conventions().items()
        ),
        data=json_in_html(data),
    )


def _conventions() -> dict[str, str]:
    """What the numbers mean, those of devices and times with their assumptions."""
    devices_text = (
        f"a rank of the stage that needs most; workspace: activations of tokens read at once and logits, as archc estimate "
        f"--serve counts them at the first settings; overhead: {OVERHEAD_BYTES >> 30} GiB for the runtime itself; "
        f"{MEMORY_UTILIZATION:.0%} of a device may be used; fits: the cache in tensors of archc's runtimes"
    )
    times = ("estimate", "efficiency", "bytes", "communication", "tokens")
    return {
        **CONVENTIONS,
        "devices": devices_text,
        **{f"time: {topic}": TIME_CONVENTIONS[topic] for topic in times},
    }


def json_in_html(data: Any) -> str:
    """JSON that no text inside of it can end: ``<``, ``>`` and ``&`` are written as escapes, and so are all but ASCII letters."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return (files("archc.reporting") / "assets" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """The script as a content security policy names it, so that no other one runs (W3C CSP level 3, hash-source)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _style() -> str:
    dark = _asset("dark.css")
    blocks = [
        forms(".drawing"),
        style(is_dark=False, scope=".drawing"),
        "@media screen and (prefers-color-scheme: dark) {",
        f':root:not([data-theme="light"]) {{ {dark} }}',
        style(is_dark=True, scope=':root:not([data-theme="light"]) .drawing'),
        "}\n@media screen {",
        f':root[data-theme="dark"] {{ {dark} }}',
        style(is_dark=True, scope=':root[data-theme="dark"] .drawing'),
        "}",
    ]
    rules = (".line.c{0}{{stroke:var(--c{0})}}", ".dot.c{0}{{fill:var(--c{0})}}", ".swatch.c{0}{{color:var(--c{0})}}")
    hues = "\n".join("".join(rules).format(hue) for hue in range(HUES))
    return Template(_asset("style.css")).substitute(dark="\n".join(blocks), hues=hues)


def _controls(models: Sequence[Model]) -> str:
    dtypes = [("", "as in the spec"), *((dtype, dtype) for dtype in SPEC_DTYPES)]
    gpus = [("", "none"), *((name, device.title) for name, device in devices().items())]
    return Template(_asset("controls.html")).substitute(
        dtypes=_options(dtypes),
        devices=_options(gpus),
        tp=_options([(str(tp), str(tp)) for tp in TP]),
        pp=_options([(str(pp), str(pp)) for pp in PP]),
        experts=_asset("experts.html") if any(model.data["ranks"]["has_experts"] for model in models) else "",
        source=_asset("source.html") if any(model.data["reads_encoder"] for model in models) else "",
    )


def _options(choices: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in choices)


def _device(device: Device) -> dict[str, Any]:
    """What a device's roof is made of; rates are far below what a double holds exactly."""
    names = ("title", "memory_bytes", "peak_flops_per_s", "bandwidth_bytes_per_s")
    links = ("link_bytes_per_s", "link_devices", "network_bytes_per_s")
    return {name: getattr(device, name) for name in (*names, *links)}


def _model(model: Model, place: int, *, is_only: bool) -> str:
    drawing, width = inlined(model.drawing, f"drawing-{place}")
    description = "" if is_only else f'<p class="muted">{escape(model.description)}</p>'
    return Template(_asset("model.html")).substitute(
        place=place,
        name=escape(model.name),
        source=escape(model.source),
        description=description,
        facts=escape(" · ".join(model.facts)),
        layout="columns" if width <= 480 else "columns stacked",
        drawing=drawing,
        parts=_parts(model),
        formulas="".join(
            f"<pre>{escape(step)} = {escape(text)}</pre>"
            for step, text in {**model.data["flops_text"], "cache used bytes": model.data["cache_text"]}.items()
        ),
    )


def _breakable(name: str) -> str:
    """A dotted name that may go on in the next line behind a dot."""
    return escape(name).replace(".", ".<wbr>")


def _parts(model: Model) -> str:
    total = max(sum(count for _, count in model.parts), 1)
    largest = max((count for _, count in model.parts), default=1)
    rows = [
        f'<tr><th scope="row">{_breakable(part)}</th><td>{count:,}</td><td>{count / total:.2%}</td>'
        f'<td class="bar" aria-hidden="true"><span style="width:{100 * count / largest:.2f}%"></span></td></tr>'
        for part, count in model.parts
    ]
    return "\n".join(rows)
