"""The check of placements beside the project: onnxruntime-gpu's own CUDA provider on stand-in libraries, without a GPU."""

from __future__ import annotations

import fcntl
import subprocess
import tempfile
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[3] / "shared" / "placement" / "check"

needs_check = pytest.mark.skipif(not CHECK.exists(), reason="the check of placements is not beside the project")


class _State:
    is_built = False


def judged(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The check of a file. Its first call on a machine makes its environment, which two processes must not do at once."""
    if _State.is_built:
        return _run(file, *options)
    with (Path(tempfile.gettempdir()) / "archc-placement.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = _run(file, *options)
    _State.is_built = True
    return done


def _run(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(CHECK), str(file), *options], capture_output=True, text=True, check=False)
