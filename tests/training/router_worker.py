"""One rank of the tests of routers: ``python router_worker.py RANK WORLD RENDEZVOUS``. Compares with one process."""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import archc
from archc.planning.parallel import Parallel
from archc.training.objectives.batch import Batch
from archc.training.options import TrainOptions
from archc.training.parallel.world import World, open_world
from archc.training.prepare import prepare
from archc.training.routers import router_metrics, update_biases
from tests.torch_backend.examples import MIXERS, MOE, small_spec

ROUTER = "{scoring_func: sigmoid, norm_topk_prob: true, correction_bias: true}"
GRAPH = archc.expand(small_spec(MIXERS["gqa"], f"{{{MOE}, num_shared_experts: 1, router: {ROUTER}}}"))
# Factors so large that the routers' losses make most of their gradients.
OPTIONS = TrainOptions(steps=10, seq_len=16, batch_size=4, balance_loss=3.0, router_z_loss=0.7, router_bias_rate=0.01)


def stepped(options, world):
    """Gradients by name, correction biases and metrics after three steps' passes."""
    prepared = prepare(GRAPH, options, world)
    size, rows = options.micro_rows, options.copy_rows
    begin = world.index("dp") * rows
    for step in range(3):
        ids = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(step))
        passes = [ids[start : start + size] for start in range(begin, begin + rows, size)]
        batches = [Batch({"input_ids": each[:, :-1]}, each[:, 1:]) for each in passes]
        prepared.module.zero_grad()
        prepared.engine.forward_backward(batches, torch.tensor(1 / 64))
        update_biases(prepared.module, options, world)
    model = prepared.module.model
    gradients = {name: whole(weight.grad) for name, weight in model.named_parameters()}
    biases = {name: buffer for name, buffer in model.named_buffers() if name.endswith("correction_bias")}
    return gradients, biases, router_metrics(prepared.module, world)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main():
    rank, size, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    failed = False
    try:
        expected, expected_biases, expected_metrics = stepped(OPTIONS, World(Parallel(), torch.device("cpu")))
        assert sum(bias.ne(0).sum().item() for bias in expected_biases.values()) > 4
        for parallel, words in (
            (Parallel(dp=2), {}),
            (Parallel(dp=2), {"micro_batch_size": 1, "recompute": "full"}),
            (Parallel(cp=2), {}),
            (Parallel(tp=2), {}),
            (Parallel(dp=2, ep=2), {}),
            (Parallel(pp=2), {"micro_batch_size": 1}),
        ):
            options = replace(OPTIONS, parallel=parallel, **words)
            gradients, biases, metrics = stepped(options, open_world(parallel, "cpu"))
            assert biases
            error = max(
                ((gradients[name] - expected[name]).norm() / expected[name].norm()).item() for name in gradients
            )
            same_biases = all(torch.equal(bias, expected_biases[name]) for name, bias in biases.items())
            off = max(abs(metrics[name] - value) / abs(value) for name, value in expected_metrics.items())
            print(f"{parallel} {words}: gradients {error:.1e}, biases {same_biases}, metrics {off:.1e}", flush=True)
            failed |= error > 2e-6 or not same_biases or off > 1e-6 or metrics.keys() != expected_metrics.keys()
        assert not failed
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
