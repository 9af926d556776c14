"""Several ranks on one machine: processes that meet over gloo."""

import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path


def run_ranks(worker, world, *args, timeout=300, environment=None):
    """The output of ``python worker.py RANK WORLD RENDEZVOUS ARGS…`` for each rank; one that fails fails the test."""
    meeting = Path(tempfile.gettempdir()) / f"archc-{secrets.token_hex(8)}"
    variables = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **(environment or {})}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(worker), str(rank), str(world), str(meeting), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
        meeting.unlink(missing_ok=True)
    failed = [errors[-4000:] for rank, (_, errors) in zip(ranks, said, strict=True) if rank.returncode]
    assert not failed, "\n\n".join(failed)
    return [output for output, _ in said]
