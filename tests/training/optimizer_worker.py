"""One rank of the tests of optimizers: ``python optimizer_worker.py RANK WORLD RENDEZVOUS``. Compares with one process.

Weights are cut as runs cut them, and every rank gets its piece of gradients that are drawn whole.
"""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import archc
from archc.planning.parallel import Parallel
from archc.training.clipping import clip_gradients
from archc.training.optimizers import make_optimizer, named_states
from archc.training.options import TrainOptions
from archc.training.parallel.initialise import piece_of
from archc.training.parallel.world import open_world
from tests.torch_backend.examples import FFNS, MIXERS, small_spec

SPEC = small_spec(MIXERS["gqa sinks"], FFNS["moe softmax normed"], layers=1)
OPTIONS = TrainOptions(steps=10, seq_len=8, batch_size=4, lr=1e-2)
STEPS = 2
MAX_NORM = 3.0


def gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(weight.shape, generator=generator) for name, weight in model.named_parameters()}


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def relative(found, expected):
    return ((found - expected).norm() / expected.norm().clamp(min=1e-12)).item()


def cut(model, world):
    """Matrices along either dimension over tp, experts over ep, then FSDP2 as a run does."""
    for at, (path, module) in enumerate(model.named_modules()):
        for name, weight in list(module._parameters.items()):
            if weight is None:
                continue
            if world.parallel.ep > 1 and weight.dim() == 3:
                mesh, along = world.expert_submesh("ep"), 0
            elif world.parallel.tp > 1 and weight.dim() == 2:
                mesh, along = world.submesh("tp"), at % 2
            else:
                continue
            piece = distribute_tensor(weight.detach(), mesh, [Shard(along)])
            module.register_parameter(name, torch.nn.Parameter(piece))
        if world.parallel.ep > 1 and path.endswith("experts"):
            fully_shard(module, mesh=world.expert_submesh("expert_dp"))
    if world.parallel.dp > 1:
        for layer in model.layers:
            fully_shard(layer, mesh=world.submesh("dp_cp"))
        fully_shard(model, mesh=world.submesh("dp_cp"))
    return model


def give(model, wholes):
    for name, weight in model.named_parameters():
        if not isinstance(weight, DTensor):
            weight.grad = wholes[name].clone()
            continue
        local = piece_of(wholes[name], weight).contiguous()
        weight.grad = DTensor.from_local(
            local, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
        )


def moved(parallel, optimizer):
    """Largest error of weights and states after some steps, and of the norms."""
    options = replace(OPTIONS, optimizer=optimizer, parallel=parallel)
    world = open_world(parallel, "cpu")
    plain, model = (archc.build(SPEC, device="cpu", seed=0) for _ in range(2))
    cut(model, world)
    expected, found = make_optimizer(plain, options), make_optimizer(model, options)
    # Muon's iteration runs in bfloat16: what clipping leaves of a float32 rounding grows, so gradients are left as they are.
    max_norm, norms = None if optimizer == "muon" else MAX_NORM, 0.0
    for step in range(STEPS):
        wholes = gradients(plain, step)
        for name, weight in plain.named_parameters():
            weight.grad = wholes[name].clone()
        give(model, wholes)
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm or float("inf"))
        norms = max(norms, relative(clip_gradients(model.parameters(), max_norm, world), norm))
        expected.step()
        found.step()
    weights = dict(model.named_parameters())
    assert all(not isinstance(w, DTensor) or w.to_local().numel() < w.numel() for w in weights.values())
    weights_error = max(relative(whole(weights[name]), weight) for name, weight in plain.named_parameters())
    states = named_states(found)
    states_error = max(relative(whole(states[name]), state) for name, state in named_states(expected).items())
    return weights_error, states_error, norms


def tied_norm():
    """A stage counts its own weights; a table that two stages hold is counted by the first."""
    world = open_world(Parallel(dp=2, pp=2), "cpu")
    stage = world.index("pp")
    weights = [torch.nn.Parameter(torch.ones(3, 4)) for _ in range(3)]
    own, table = weights[stage], weights[2]
    own.grad, table.grad = torch.full((3, 4), 1.0 + stage), torch.full((3, 4), 5.0)
    norm = clip_gradients([own, table], 1.0, world, elsewhere=[table] if stage else [])
    expected = (12 * (1.0 + 4.0 + 25.0)) ** 0.5
    assert relative(norm, torch.tensor(expected)) < 1e-6, (norm, expected)
    assert relative(table.grad, torch.full((3, 4), 5.0 / expected)) < 1e-6


def main():
    rank, world, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    failed = False
    try:
        for parallel in (Parallel(dp=4), Parallel(dp=2, tp=2), Parallel(dp=4, ep=2)):
            for optimizer in ("adamw", "muon", "sgd"):
                weights, states, norms = moved(parallel, optimizer)
                print(
                    f"{parallel} {optimizer}: weights {weights:.1e}, states {states:.1e}, norms {norms:.1e}", flush=True
                )
                failed |= max(weights, states, norms) > 1e-6
        tied_norm()
        assert not failed
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
