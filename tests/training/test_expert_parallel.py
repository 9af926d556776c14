"""Experts shared out over ranks: losses and gradients of one process, however the rows fall."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc import Parallel  # noqa: E402
from archc.errors import SpecError  # noqa: E402
from archc.training.parallel import experts  # noqa: E402
from archc.training.parallel.world import World  # noqa: E402
from tests.training.compared import assert_losses_of_one_process  # noqa: E402
from tests.training.ranks import run_ranks  # noqa: E402

pytestmark = pytest.mark.torch

WORKER = Path(__file__).with_name("expert_parallel_worker.py")


@pytest.mark.parametrize("ranks", [2, 4])
def test_shared_experts_give_the_losses_and_every_gradient_of_one_process(ranks):
    """MLA, hybrid and windowed models; all rows on one rank; recomputed layers; weights on inputs; ep of dp, of cp, of both."""
    for output in run_ranks(WORKER, ranks):
        assert_losses_of_one_process(output)
        assert output.count("equal: ") == 4


def test_experts_that_ranks_can_not_share_evenly_are_refused_as_in_a_plan():
    parallel = Parallel(dp=3, ep=3)
    model = archc.build("tiny-deepseek-v3")
    with pytest.raises(SpecError, match=r"8 experts of moe \(layers\.1 and 2 others\) can't be cut into 3 \(ep\)"):
        experts.share(model, archc.expand(archc.load_spec("tiny-deepseek-v3")), World(parallel, torch.device("cpu")))
