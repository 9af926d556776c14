"""One rank whose tensors are weighed: ``python plan_worker.py RANK WORLD RENDEZVOUS``. Prints bytes a plan."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.distributed.tensor import DTensor

from archc.training.parallel.stage import weights_here
from tests.training.compared import as_rank
from tests.training.learner import Learner
from tests.training.worlds import WEIGHED, options_of


def bytes_of(tensors):
    """What this rank has of each."""
    own = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in own)


def weighed(spec, plan):
    """Bytes after a step, when its gradients still lie there."""
    parallel, more = options_of(plan)
    run = Learner(spec, parallel=parallel, **more)
    kept = []
    run.optimizer.zero_grad = lambda: kept.extend(param.grad for param in run.optimizer.names.values())
    run.learn(1)
    weights = weights_here(run.prepared.module.model, run.graph)
    moved = {name: weight for name, weight in weights.items() if isinstance(weight, torch.nn.Parameter)}
    assert moved.keys() == run.optimizer.names.keys()
    return {
        "stage": run.world.index("pp"),
        "shard": run.world.index("dp_cp"),
        "expert_shard": run.world.index("expert_dp"),
        "parameters": bytes_of(moved.values()),
        "buffers": bytes_of(weight for name, weight in weights.items() if name not in moved),
        "gradients": bytes_of(kept),
        "states": bytes_of(tensor for state in run.optimizer.state.values() for name, tensor in state.items()),
    }


def main(size):
    for spec, plans in WEIGHED[size].items():
        for plan in plans:
            print(json.dumps([spec, plan, weighed(spec, plan)]), flush=True)


if __name__ == "__main__":
    as_rank(main)
