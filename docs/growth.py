"""Writes what is computed of docs/complexity.md, and the figures of docs/diagrams.md.

python docs/growth.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from archc.drawing.diagram import diagram
from archc.estimation.complexity import COMPARED, complexity
from archc.spec.load import load_spec

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "complexity.md"
BEGIN, END = "<!-- Written by docs/growth.py. -->\n", "<!-- End of what docs/growth.py writes. -->\n"

SPECS = (
    "kimi-linear-48b-a3b",
    "deepseek-v3",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "nsa-demo",
    "moba-demo",
    "llama-3-8b",
    "gpt-oss-20b",
    "gemma-3-27b",
    "llama-4-scout",
    "qwen3-next-80b-a3b",
    "minimax-text-01",
    "jamba-v0.1",
    "mamba2-2.7b",
    "retnet",
    "gla",
    "performer",
    "linformer",
    "longformer-base-4096",
    "t5-base",
    "demo-yoco",
)
"""Specs of the table, in its order."""

FIGURES = ("kimi-linear-48b-a3b", "t5-base")
"""Specs whose diagrams are files beside the page."""


def rows() -> Iterator[str]:
    """One line a mixer."""
    for name in SPECS:
        spec = load_spec(name)
        for kind in complexity(spec, lengths=[4096, 131072]).kinds:
            if kind.family != "mixer":
                continue
            # A window's growth is told by its letter, so its length stands beside it.
            bounds = {letter: tokens for growth in kind.growth.values() for letter, tokens in growth.bounds.items()}
            told = ", ".join(f"{letter} = {tokens:,}" for letter, tokens in bounds.items())
            growth = [
                str(one) + (f", {told}" if told and at == 0 else "") for at, one in enumerate(kind.growth.values())
            ]
            found = {} if kind.overtakes is None else kind.overtakes.tokens
            against = "" if kind.overtakes is None else kind.overtakes.against
            crossing = [_told(found[form]) if form in found else "" for form in COMPARED]
            steps = [kind.at[length]["decode"] for length in (4096, 131072)]
            intensity = [f"{step.flops_per_byte:,.2f}" if step.flops else "-" for step in steps]
            label = f"{kind.section} {kind.name} ({spec.mixers[kind.name].kind_name})"
            yield f"| {' | '.join([name, label.strip(), *growth, against, *crossing, *intensity])} |"


def _told(length: int | None) -> str:
    return "never" if length is None else f"{length:,}"


def table() -> str:
    """The table of the page."""
    heads = (
        "spec",
        "mixer",
        "prefill",
        "decode",
        "cache",
        "full attention",
        "prefill from",
        "decode from",
        "cache from",
        "FLOPs/B at 4k",
        "at 128k",
    )
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *rows()]
    return "\n".join(lines) + "\n"


def page_text(page: str) -> str:
    """The page with its table computed anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE.name} lacks {BEGIN}"
    assert end, f"{PAGE.name} lacks {END}"
    return f"{before}{begin}\n{table()}\n{end}{after}"


def figure(name: str) -> Path:
    """Where a diagram lies."""
    return ROOT / "docs" / f"{name}.svg"


def main() -> None:
    """Write the page and the figures."""
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for name in FIGURES:
        figure(name).write_text(diagram(load_spec(name)), encoding="utf-8")


if __name__ == "__main__":
    main()
