"""Pipeline parallelism: stages of any model give the loss and the gradients of one process; what can't be is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.training.ranks import run_ranks  # noqa: E402

pytestmark = pytest.mark.torch

WORKER = Path(__file__).with_name("pipeline_worker.py")


@pytest.mark.parametrize("ranks", [2, 4])
def test_stages_give_the_loss_and_every_gradient_of_one_process(ranks):
    run_ranks(WORKER, ranks)
