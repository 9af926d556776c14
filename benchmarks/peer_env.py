"""The peers' own environment, and processes in it or in archc's, with the time and memory that they took.

python benchmarks/peer_env.py      makes .bench-venv if it is missing or its requirements have changed
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / ".bench-venv"
REQUIREMENTS = HERE / "requirements.txt"
STORE = FOLDER / "models"
"""Checkpoints and exports: big, and easily made again."""


def peer_python() -> str:
    """The interpreter of the peers' environment, which is made first where needed (minutes, some 2 GB)."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / "requirements.installed"
    wanted = REQUIREMENTS.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing the peers into {FOLDER.name}", flush=True)
        venv.create(FOLDER, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)], check=True)
        stamp.write_text(wanted)
    return str(python)


@dataclass(frozen=True, slots=True)
class Process:
    """What one process said and took."""

    stdout: str
    wall_s: float
    cpu_s: float
    rss_mib: float


def run(words: list[str], *, threads: int = 1) -> Process:
    """A process and its cost.

    Raises:
        SystemExit: it failed; with the end of what it said.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=HERE
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(
            f"{' '.join(words)}\n{said[-3000:]}\nexit {process.returncode} (-9: killed, perhaps for memory)"
        )
    return Process(said, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    print(peer_python())
    sys.exit(0)
