"""Writes what is computed of docs/attention.md: the table of kinds, and the pictures.

python docs/attention_page.py [--pictures]
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

from attention_names import ENTRIES, GQA, PICTURES, TOKENS, WIDTH, Entry

from archc import registry
from archc.estimation.complexity import KindGrowth, complexity
from archc.estimation.estimate import estimate
from archc.spec.load import load_spec, loads_spec
from archc.spec.schema import Spec
from archc.spec.shipped import shipped_specs
from archc.testing.placing import spec_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "attention.md"
BEGIN, END = "<!-- Written by docs/attention_page.py. -->\n", "<!-- End of what docs/attention_page.py writes. -->\n"

MOST_SPECS = 3
"""That a line names; the others are counted."""


@cache
def specs() -> dict[str, Spec]:
    """Every shipped spec by name."""
    return {name: load_spec(name) for name in sorted(shipped_specs())}


def used_by(entry: Entry) -> list[str]:
    """Names of the shipped specs that have it, those of miniatures last."""
    family, _, name = entry.kind.partition(".")
    found: list[str] = []
    for title, spec in specs().items():
        kinds = [spec.position] if family == "position" else list(spec.mixers.values())
        if not any(kind.kind_name == name and entry.uses(kind) for kind in kinds):
            continue
        masks = {stack.mask for stack in spec.stacks().values()} if entry.told else set[str]()
        wanted = {"in an encoder": "bidirectional", "stack.mask: prefix": "prefix"}.get(entry.told)
        is_cross = entry.cost != "cross" or any(stack.cross is not None for stack in spec.stacks().values())
        if is_cross and (wanted is None or wanted in masks):
            found.append(title)
    return sorted(found, key=lambda title: (title.startswith("tiny-"), title))


def placed(entry: Entry) -> Spec:
    """One layer of it without feed-forward and head."""
    family, _, name = entry.kind.partition(".")
    around = {section: dict(keys) if isinstance(keys, dict) else keys for section, keys in entry.around.items()}
    around.setdefault("embedding", {"hidden_size": WIDTH, "tie_word_embeddings": True})
    around |= {"max_position_embeddings": 2 * TOKENS, "head": "none"}
    if family == "position":
        around["mixers"] = {"mixer": {"kind": "gqa", **GQA}}
    usual = {"num_layers": 1, "block": "pre_norm", "mixer": "mixer", "ffn": "none"}
    stacks = [section for section in ("stack", "encoder", "decoder") if section in around]
    masks = registry.load("mixer", name).masks if family == "mixer" else ("causal",)
    for section in stacks or ["stack" if "causal" in masks else "encoder"]:
        cross = {"cross": "mixer"} if section == "decoder" and entry.cost == "cross" else {}
        around[section] = {**usual, **cross, **around.get(section, {})}
    return loads_spec(spec_text(family, name, entry.keys, around))


def growth_of(entry: Entry) -> tuple[Spec, KindGrowth]:
    """(the spec, the costs of the layer's mixer)."""
    spec = placed(entry)
    kinds = complexity(spec, lengths=[TOKENS]).kinds
    return spec, next(kind for kind in kinds if kind.family == entry.cost and kind.name == "mixer")


def row(entry: Entry) -> str:
    """Its line in the table."""
    spec, kind = growth_of(entry)
    costs = estimate(spec, max_model_len=TOKENS)
    own = ("mixer", "mixer")
    parameters = sum(count for part, count in costs.parameters.by_part.items() if part[:2] == own)
    step = kind.at[TOKENS]
    decode = step["decode"].flops if "decode" in step else 0
    cache_bytes = sum(one.used_bytes for one in costs.cache.by_kind if one.part[:2] == own)
    family, _, name = entry.kind.partition(".")
    label = f"`{name}`" + (f", {entry.told}" if entry.told else "") if family == "mixer" else f"position `{name}`"
    names = used_by(entry)
    shown = [f"[{title}](../{shipped_specs()[title].relative_to(ROOT)})" for title in names[:MOST_SPECS]]
    more = f" and {len(names) - MOST_SPECS} more" if len(names) > MOST_SPECS else ""
    return (
        " | ".join(
            (
                f"| {entry.name}",
                ", ".join(
                    f"[{one}](https://arxiv.org/abs/{one})" if one[0].isdigit() else one
                    for one in entry.paper.split(", ")
                ),
                label,
                f"`{entry.formula}`",
                str(kind.growth["prefill"]),
                str(kind.growth["cache"]) if "cache" in kind.growth else "-",
                f"{parameters:,}",
                f"{step['prefill'].flops // TOKENS:,}",
                f"{decode:,}" if decode else "-",
                f"{cache_bytes:,}" if cache_bytes else "-",
                ", ".join(shown) + more if shown else "-",
                f"[picture](attention-{PICTURES[entry.name]}.png)" if entry.name in PICTURES else "-",
            )
        )
        + " |"
    )


HEADS_OF_TABLE = (
    "name in the field",
    "paper",
    "kind and key",
    "formula",
    "prefill",
    "cache",
    "parameters",
    "prefill FLOPs a token",
    "decode FLOPs",
    "cache bytes",
    "specs",
    "picture",
)


def table() -> str:
    """The table of the page."""
    lines = [f"| {' | '.join(HEADS_OF_TABLE)} |", f"|{'---|' * len(HEADS_OF_TABLE)}", *map(row, ENTRIES)]
    return "\n".join(lines) + "\n"


def page_text(page: str) -> str:
    """The page with its table computed anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE.name} lacks {BEGIN}"
    assert end, f"{PAGE.name} lacks {END}"
    return f"{before}{begin}\n{table()}\n{end}{after}"


def commands(page: str) -> list[list[str]]:
    """The commands of the page that write pictures, as words."""
    lines = page.replace("\\\n", " ").splitlines()
    found = [shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ archc attention")]
    return [words for words in found if "-o" in words]


def main() -> None:
    """Write the table; with --pictures the pictures, too."""
    page = page_text(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")
    if "--pictures" in sys.argv[1:]:
        for words in commands(page):
            subprocess.run([sys.executable, "-m", "archc", *words[1:]], cwd=ROOT / "docs", check=True)


if __name__ == "__main__":
    main()
