"""Times ``archc validate`` of many specs at once, and validation and estimate of one of 10,000 layers.

Every shipped model is varied in depth and width; each command is a process of its own, start-up included. Wall and
processor seconds are printed, the best of the rounds, beside the limits that the project promises.

    python benchmarks/validate_many.py [--specs 1000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from archc.spec.resolved import resolved
from archc.spec.shipped import shipped_specs

LIMIT_MANY_S = 10.0
LIMIT_DEEP_S = 2.0
LAYERS = 10_000


def write_specs(folder: Path, count: int) -> None:
    """So many valid specs, each written out whole and each with numbers of its own."""
    texts = [resolved(path).to_yaml() for path in shipped_specs().values()]
    for number in range(count):
        text = texts[number % len(texts)]
        name = next(line for line in text.splitlines() if line.startswith("name:"))
        varied = text.replace(name, f"name: variant-{number}").replace("eps: 1.0e-05", f"eps: {number + 1}.0e-7")
        (folder / f"variant-{number:04}.yaml").write_text(varied, encoding="utf-8")


def seconds(command: list[str], folder: Path, rounds: int) -> tuple[float, float]:
    """(wall, processor) of the fastest round.

    Raises:
        CalledProcessError: the command failed.
    """
    best: tuple[float, float] | None = None
    for _ in range(rounds):
        before, start = os.times(), time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        wall, after = time.perf_counter() - start, os.times()
        busy = after.children_user + after.children_system - before.children_user - before.children_system
        best = min(best or (wall, busy), (wall, busy))
    assert best is not None, "at least one round"
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--specs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    archc = [sys.executable, "-m", "archc"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_specs(folder, arguments.specs)
        deep = folder / "deep.yml"
        deep.write_text(resolved("kimi-linear-48b-a3b", [f"stack.num_layers={LAYERS - 1}"]).to_yaml(), encoding="utf-8")
        measured = [
            (f"validate {arguments.specs:,} specs", [*archc, "validate", "*.yaml"], LIMIT_MANY_S),
            (f"validate {LAYERS - 1:,} layers", [*archc, "validate", deep.name], LIMIT_DEEP_S),
            (f"estimate {LAYERS - 1:,} layers", [*archc, "estimate", deep.name, "--json"], LIMIT_DEEP_S),
        ]
        print(f"{'':24}{'wall s':>8}{'cpu s':>8}{'limit s':>9}")
        for label, command, limit in measured:
            wall, busy = seconds(command, folder, arguments.rounds)
            print(f"{label:24}{wall:8.2f}{busy:8.2f}{limit:9.1f}")


if __name__ == "__main__":
    main()
