"""One rank of the tests of sampled texts and of plans: ``python sampling_worker.py RANK WORLD RENDEZVOUS``. The first prints."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from archc.expansion import as_graph
from archc.training.parallel.stage import weights_here
from archc.training.parallel.world import open_world
from archc.training.prepare import prepare
from archc.training.watching.sampling import ModelSampler, whole_weights
from tests.training.sampled import CASES, NEW_TOKENS, PROMPTS, options_of


def main():
    rank, world, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    try:
        for name, parallel in CASES:
            graph, options = as_graph(name), options_of(parallel)
            place = open_world(parallel)
            prepared = prepare(graph, options, place)
            sampler = ModelSampler(
                graph, prepared.module, options, place, prompts=PROMPTS, text=None, new_tokens=NEW_TOKENS
            )
            samples = sampler(1)
            sums = {
                key: weight.double().sum().item() for key, weight in whole_weights(prepared.module.model, graph, place)
            }
            held = {
                key: list(weight.to_local().shape if isinstance(weight, DTensor) else weight.shape)
                for key, weight in weights_here(prepared.module.model, graph).items()
            }
            if rank == 0:
                print(json.dumps([[[one.kind, *one.ids] for one in samples], sums, held]), flush=True)
            assert rank == 0 or not samples
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
