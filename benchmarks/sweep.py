"""Times ``archc sweep`` of the 48B hybrid, in variants a second on one core.

Three sweeps, each a process of its own, start-up and the file that it writes included: a grid of heads, ranks, experts, patterns
and depths, whose layers come back; the widths of the model, one a variant, so that every layer of every variant is new; and
for scale the same grid as one estimate a variant. Wall and processor seconds are printed, the best of the rounds.

    python benchmarks/sweep.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET_VARIANTS_PER_S = 2000
SPEC = "kimi-linear-48b-a3b"

GRID = (
    "mixers.kda.num_heads=8..64..8",
    "mixers.mla.kv_lora_rank=128..1024..128",
    "ffns.moe.num_experts=64..512..x2",
    'stack.mixer="(kda*3 mla)* kda*2 mla","(kda*7 mla)* kda*2 mla","(kda mla)* kda*2 mla","kda* mla"',
    "stack.num_layers=19..67..8",
)
WIDTHS = ("embedding.hidden_size=512..6912..16",)
ALONE = 200
"""Estimates that are made one by one."""

ESTIMATES = f"""
import itertools, sys
from archc.estimation.estimate import estimate
from archc.spec.load import load_spec
for heads, rank in itertools.islice(itertools.product(range(8, 72, 8), range(128, 1152, 16)), {ALONE}):
    spec = load_spec({SPEC!r}, [f"mixers.kda.num_heads={{heads}}", f"mixers.mla.kv_lora_rank={{rank}}"])
    for length in (4096, 131072):
        estimate(spec, max_model_len=length)
"""


def seconds(command: list[str], folder: Path, rounds: int) -> tuple[float, float, str]:
    """(wall, processor, stderr) of the fastest round.

    Raises:
        CalledProcessError: the command failed.
    """
    best: tuple[float, float, str] | None = None
    for _ in range(rounds):
        before, start = os.times(), time.perf_counter()
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        wall, after = time.perf_counter() - start, os.times()
        busy = after.children_user + after.children_system - before.children_user - before.children_system
        best = min(best or (wall, busy, done.stderr), (wall, busy, done.stderr))
    assert best is not None, "at least one round"
    return best


def _line(title: str, number: int, wall: float, busy: float) -> str:
    """``busy`` seconds are what one core works, whatever else the machine does."""
    return f"{title:<22}{number:>7,} variants  {wall:6.2f} s wall  {busy:6.2f} s busy  {number / busy:8,.0f} a second"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for title, vary in (("layers come back", GRID), ("every layer is new", WIDTHS)):
            options = [word for key in vary for word in ("--vary", key)]
            command = [sys.executable, "-m", "archc", "sweep", SPEC, *options, "-o", "out.csv"]
            wall, busy, _ = seconds(command, folder, rounds)
            number = sum(1 for _ in (folder / "out.csv").open(encoding="utf-8")) - 1
            target = f"  (target {TARGET_VARIANTS_PER_S:,})" if vary is GRID else ""
            print(f"{_line(title, number, wall, busy)}{target}")
        wall, busy, _ = seconds([sys.executable, "-c", ESTIMATES], folder, 1)
        print(_line("archc.estimate alone", ALONE, wall, busy))


if __name__ == "__main__":
    main()
