"""FSDP2 over two processes gives the numbers of one: logits, gradients and cached decoding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

WORLD = 2
WORKER = Path(__file__).with_name("fsdp_worker.py")
CASES = [
    f"equal: {name}, {how}"
    for name in ("tiny-llama", "tiny-kimi-linear")
    for how in ("plain", "checkpointed", "mixed", "mixed, inputs cast")
]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_sharded_layers_give_the_numbers_of_one_process(tmp_path):
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(WORLD), str(tmp_path / "rendezvous")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(WORLD)
    ]
    try:
        said = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for rank, (output, errors) in zip(ranks, said, strict=True):
        assert rank.returncode == 0, errors[-4000:]
        assert output.splitlines() == CASES
