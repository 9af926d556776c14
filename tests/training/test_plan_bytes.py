"""``archc plan`` says what ranks of ``archc train`` hold: weights, gradients and states of its own ``prepare``, to the byte."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from tests.training.ranks import run_ranks  # noqa: E402
from tests.training.worlds import WEIGHED, options_of  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
]

WORKER = Path(__file__).with_name("plan_worker.py")


def in_plan(weights):
    """A plan's numbers under the worker's names."""
    return {
        "parameters": weights.parameters + weights.masters,
        "buffers": weights.buffers,
        "gradients": weights.gradients,
        # Fused kernels count steps beside the weight, others on the host.
        "states": weights.optimizer + weights.host,
    }


@pytest.mark.parametrize("world", list(WEIGHED))
def test_ranks_hold_what_the_plan_says(world):
    said = [
        [json.loads(line) for line in output.splitlines() if line.startswith("[")]
        for output in run_ranks(WORKER, world)
    ]
    for rank, lines in enumerate(said):
        assert [(spec, plan) for spec, plan, _ in lines] == [
            (spec, plan) for spec in WEIGHED[world] for plan in WEIGHED[world][spec]
        ]
        for spec, plan, found in lines:
            parallel, more = options_of(plan)
            dtype, optimizer = more.get("dtype", "float32"), more.get("optimizer", "adamw")
            planned = archc.plan(spec, parallel, dtype=dtype, optimizer=optimizer)
            assert planned.is_trainable
            place = {name: found.pop(name) for name in ("stage", "shard", "expert_shard")}
            if place["shard"] == place["expert_shard"] == 0:
                assert found == in_plan(planned.stages[place["stage"]].weights), (spec, plan, rank)
