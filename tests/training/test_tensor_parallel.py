"""Tensor parallelism over real ranks gives the loss and every gradient of one process, for every kind that there is."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.training.ranks import run_ranks  # noqa: E402
from tests.training.tensor_parallel_cases import GROUPS  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
]

WORKER = Path(__file__).with_name("tensor_parallel_worker.py")


def check(group, world):
    for output in run_ranks(WORKER, world, group, timeout=600):
        said = [line.partition(": ")[2].rpartition(":")[0] for line in output.splitlines() if line.startswith("equal: ")]
        assert said == list(GROUPS[group])


def test_shipped_models_on_two_ranks_have_the_gradients_of_one_process():
    check("shipped", 2)


def test_every_kind_and_variant_on_two_ranks_has_the_gradients_of_one_process():
    check("every", 2)


def test_four_ranks_have_the_gradients_of_one_process():
    check("four", 4)


def test_copies_that_fsdp_cuts_once_more_have_the_gradients_of_one_process():
    check("copies", 4)


def test_a_compiled_and_a_recomputed_model_has_the_gradients_of_one_process():
    check("changed", 2)
