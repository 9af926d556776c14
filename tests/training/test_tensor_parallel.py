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


@pytest.fixture(scope="module")
def two():
    """What two ranks said."""
    return run_ranks(WORKER, 2, "shipped", "every", "changed", timeout=900)


@pytest.fixture(scope="module")
def four():
    return run_ranks(WORKER, 4, "four", "copies", timeout=900)


def check(group, outputs):
    for output in outputs:
        said = [line.rpartition(":")[0] for line in output.splitlines() if line.startswith(f"{group}: ")]
        assert said == [f"{group}: {case}" for case in GROUPS[group]]


def test_shipped_models_on_two_ranks_have_the_gradients_of_one_process(two):
    check("shipped", two)


def test_every_kind_and_variant_on_two_ranks_has_the_gradients_of_one_process(two):
    check("every", two)


def test_a_compiled_and_a_recomputed_model_has_the_gradients_of_one_process(two):
    check("changed", two)


def test_four_ranks_have_the_gradients_of_one_process(four):
    check("four", four)


def test_copies_that_fsdp_cuts_once_more_have_the_gradients_of_one_process(four):
    check("copies", four)
