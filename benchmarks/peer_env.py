"""The peers' own environment, and processes in it or in archc's, with the time and memory that they took.

python benchmarks/peer_env.py      makes .bench-venv if it is missing or its requirements have changed
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


# A process begins with the peak memory of the one that starts it, so a small one stands between.
_COUNTED = """
import json, os, sys, time
begin = time.perf_counter()
child = os.fork()
if child == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(child, 0)
used = dict(wall_s=time.perf_counter() - begin, cpu_s=usage.ru_utime + usage.ru_stime, rss_mib=usage.ru_maxrss / 1024)
os.write(int(sys.argv[1]), json.dumps(used).encode())
os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
"""


def run(words: list[str], *, threads: int = 1) -> Process:
    """A process and its cost.

    Raises:
        SystemExit: it failed; with the end of what it said.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    read, write = os.pipe()
    command = [sys.executable, "-I", "-S", "-c", _COUNTED, str(write), *words]
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=HERE,
        pass_fds=[write],
        check=False,
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        used = json.loads(pipe.read() or "{}")
    said = process.stdout
    if process.returncode:
        raise SystemExit(
            f"{' '.join(words)}\n{said[-3000:]}\nexit {process.returncode} (247: killed, perhaps for memory)"
        )
    return Process(said, **used)


if __name__ == "__main__":
    print(peer_python())
    sys.exit(0)
