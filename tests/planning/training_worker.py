"""One rank of the tests of sharded training: ``python training_worker.py RANK WORLD RENDEZVOUS``. Prints what lies on it."""

import itertools
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import archc
from archc.planning.sharding import Parallel, shard
from tests.torch_backend.examples import ids_for

MODELS = ("tiny-llama", "tiny-kimi-linear", "tiny-deepseek-v3")
CLASSES = {"adamw": "AdamW", "adafactor": "Adafactor", "sgd": "SGD"}


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def optimized(model, name):
    """The optimizer after a step: its states are there, whether torch can go on with sharded factors or not."""
    options = {"momentum": 0.9} if name == "sgd" else {}
    optimizer = getattr(torch.optim, CLASSES[name])(model.parameters(), **options)
    try:
        optimizer.step()
    except RuntimeError as error:
        # Adafactor makes its states and then can't go on with factors that are not sharded.
        if name != "adafactor" or "in-place operations that require placement changes" not in str(error):
            raise
    return optimizer


def held(model, optimizer):
    """Bytes that lie on this rank."""
    states = [(key, value) for state in optimizer.state.values() for key, value in state.items()]
    return {
        "parameters": sum(local(weight).nbytes for weight in model.parameters()),
        "padded": sum(local(weight).untyped_storage().nbytes() for weight in model.parameters()),
        "buffers": sum(buffer.nbytes for buffer in model.buffers()),
        "gradients": sum(local(weight.grad).nbytes for weight in model.parameters()),
        "optimizer": sum(local(value).nbytes for key, value in states if key != "step"),
        "host": sum(value.nbytes for key, value in states if key == "step"),
    }


def shard_layers(model, mesh, how):
    """FSDP2, a layer a group; ``masters`` computes in bfloat16."""
    options = {"mesh": mesh}
    if how == "masters":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def sharded(name, mesh, how, optimizer):
    """FSDP2 over both ranks, the whole of a training step."""
    model = shard_layers(archc.build(name, device="cpu", seed=0), mesh, how)
    model(ids_for(model, 2, 16)).float().square().mean().backward()
    for weight in model.parameters():
        # An expert that no token visits, an indexer that no loss trains: FSDP2 leaves the gradient out.
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    return held(model, optimized(model, optimizer))


def cut(name, mesh, parallel, optimizer):
    """Weights as DTensors, cut where the plan says, with gradients alike."""
    model = archc.build(name, device="cpu", seed=0)
    tensors = dict(model.named_parameters(remove_duplicate=False))
    stage = shard(archc.expand(archc.load_spec(name)), parallel, vocab_multiple=1).check().stages[0]
    for piece in stage.params:
        for key in piece.names:
            if key not in tensors:
                continue
            dims = [dim for dim, (axis, _) in piece.cuts.items() if getattr(parallel, axis) > 1]
            placement = Shard(dims[0]) if dims else Replicate()
            weight = torch.nn.Parameter(distribute_tensor(tensors[key].detach(), mesh, [placement]))
            weight.grad = torch.zeros_like(weight)
            for other in (other for other, tensor in tensors.items() if tensor is tensors[key]):
                module, _, last = other.rpartition(".")
                model.get_submodule(module).register_parameter(last, weight)
    return held(model, optimized(model, optimizer))


def tracked_peak(mesh, how, mode):
    """The most that lies on this rank in a second step of FSDP2, by torch's tracker of its memory."""
    model = archc.recompute(archc.build("tiny-llama", device="cpu", seed=0), mode)
    ids = ids_for(model, 2, 32)
    targets = ids.clone()
    optimizer = torch.optim.AdamW(shard_layers(model, mesh, how).parameters(), foreach=False)
    tracker = FSDPMemTracker(model, optimizer)
    with tracker:
        for is_first in (True, False):
            logits = model(ids)
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
            loss.backward()
            del logits, loss
            if is_first:
                optimizer.step()
                tracker.reset_mod_stats()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def recomputed(mesh):
    """Gradients of a sharded model whose layers are computed again, set before and after sharding."""
    found = []
    for mode, is_before in (("none", True), ("full", True), ("selective", False), ("full", False)):
        model = archc.build("tiny-kimi-linear", device="cpu", seed=0)
        if is_before:
            archc.recompute(model, mode)
        shard_layers(model, mesh, "plain")
        if not is_before:
            archc.recompute(model, mode)
        model(ids_for(model, 2, 16)).float().square().mean().backward()
        found.append({key: local(weight.grad) for key, weight in model.named_parameters()})
    return all(torch.equal(other[key], found[0][key]) for other in found[1:] for key in found[0])


def main():
    rank, world, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    found = {}
    try:
        mesh = init_device_mesh("cpu", (world,))
        for name in MODELS:
            # Factors and momenta are rules of their own: one model of every form of weight shows them.
            for optimizer in CLASSES if name == "tiny-deepseek-v3" else ("adamw",):
                found[f"fsdp plain {optimizer} {name}"] = sharded(name, mesh, "plain", optimizer)
                found[f"tp {optimizer} {name}"] = cut(name, mesh, Parallel(tp=world), optimizer)
            found[f"fsdp masters adamw {name}"] = sharded(name, mesh, "masters", "adamw")
        found["ep adamw tiny-deepseek-v3"] = cut("tiny-deepseek-v3", mesh, Parallel(dp=world, ep=world), "adamw")
        for how, mode in itertools.product(("plain", "masters"), ("none", "full")):
            found[f"peak {how} {mode}"] = tracked_peak(mesh, how, mode)
        found["recomputed"] = recomputed(mesh)
    finally:
        dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
