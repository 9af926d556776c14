"""One rank of the tests of ``archc.train`` over ranks: ``python worlds_worker.py RANK WORLD RENDEZVOUS DATA``. Prints losses."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

import archc
from tests.training.worlds import PLANS, STATED, options_of


def main():
    rank, world, rendezvous, data = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    try:
        for spec, plans in PLANS[world].items():
            for plan in plans:
                parallel, more = options_of(plan)
                found = archc.train(spec, data=data, parallel=parallel, **{**STATED, **more})
                numbers = [[record.loss, record.grad_norm] for record in found.records]
                print(json.dumps([spec, plan, numbers, found.eval_loss]), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
