"""Largest differences of encoders' outputs from transformers', as docs/accuracy.md has them.

.venv/bin/python -m tests.checkpoint.encoder_figures [NAME …]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

import archc
from archc.checkpoint.convert import to_archc
from archc.checkpoint.opening import import_folder
from tests.checkpoint.encoders import ENCODERS, LENGTHS, TOKENS, judge_of, largest, saved


@torch.no_grad()
def figures(name: str) -> tuple[float, float, float]:
    """(whole, rows padded on the right, size of the largest output) of one case, absolute differences of float32."""
    judge = judge_of(name)
    with tempfile.TemporaryDirectory() as place:
        folder = saved(name, Path(place) / "theirs")
        imported = import_folder(folder)
        to_archc(folder, Path(place) / "ours", imported)
        model = archc.load_weights(archc.build(imported.spec, device="cpu"), Path(place) / "ours").eval()
    typed = {} if judge.types is None else {"token_type_ids": judge.types}
    want, got = judge.forward(judge.main, **typed), _listed(model(judge.main, **typed))
    whole = max(float((mine - theirs).abs().max()) for mine, theirs in zip(got, want, strict=True))
    if not judge.is_text:
        return whole, 0.0, largest(want)
    ids, mask = judge.main.clone(), torch.ones(len(LENGTHS), TOKENS, dtype=torch.int64)
    for row, length in enumerate(LENGTHS):
        ids[row, length:], mask[row, length:] = judge.encoder.pad, 0
    more = {"attention_mask": mask, **typed}
    pairs = zip(_listed(model(ids, **more)), judge.forward(ids, **more), strict=True)
    kept = mask.bool()
    padded = (mine[kept] - theirs[kept] if mine.dim() == 3 else mine - theirs for mine, theirs in pairs)
    return whole, max(float(each.abs().max()) for each in padded), largest(want)


def _listed(found: object) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)  # type: ignore[call-overload]


def main() -> None:
    print("| encoder | whole | padded | largest output |\n|---|---|---|---|")
    for name in sys.argv[1:] or ENCODERS:
        whole, padded, size = figures(name)
        print(f"| {name} | {whole:.1e} | {padded:.1e} | {size:.1f} |", flush=True)


if __name__ == "__main__":
    main()
