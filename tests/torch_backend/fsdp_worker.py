"""One rank of the FSDP2 tests: ``python fsdp_worker.py RANK WORLD RENDEZVOUS``. Compares with the same model unsharded."""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import archc
from archc.torch_backend.step import Step
from tests.torch_backend.examples import assert_close, every_expert, ids_for, lively

BATCH, SEQ = 4, 20


def loss_of(logits):
    return logits.float().square().mean()


def relative(found, expected):
    """Root mean square of the difference over that of what is expected."""
    return ((found.float() - expected).square().mean() / expected.square().mean()).sqrt().item()


def compare(name, mesh, how):
    rank, world = mesh.get_local_rank(), mesh.size()
    mixed = how.startswith("mixed")
    if mixed:
        plain, model = (archc.build(every_expert(name), device="cpu", seed=0) for _ in range(2))
    else:
        plain, model = lively(name), lively(name)
    ids = ids_for(plain, BATCH, SEQ)
    mine = ids[rank * (BATCH // world) : (rank + 1) * (BATCH // world)]
    if how == "checkpointed":
        layers = set(model.layers)
        apply_activation_checkpointing(model, check_fn=lambda module: module in layers)
    options = {"mesh": mesh}
    if mixed:
        # A cache is an input that is written in place: FSDP must not hand a layer a copy of it in another dtype.
        dtypes = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
        options["mp_policy"] = MixedPrecisionPolicy(**dtypes, cast_forward_inputs=how == "mixed, inputs cast")
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)

    expected = plain(ids)
    loss_of(expected).backward()
    logits = model(mine)
    loss_of(logits).backward()
    ours = expected[rank * (BATCH // world) : (rank + 1) * (BATCH // world)]
    if mixed:
        assert logits.dtype == torch.bfloat16
        assert (error := relative(logits, ours)) < 0.05, error
    else:
        assert_close(logits, ours, 1e-5)
    gradients = {key.replace("_checkpoint_wrapped_module.", ""): w.grad for key, w in model.named_parameters()}
    for key, weight in plain.named_parameters():
        gradient = gradients.pop(key)
        assert gradient.dtype == torch.float32
        assert gradient.to_local().numel() < weight.numel() or weight.shape[0] < world
        if not mixed:
            assert_close(gradient.full_tensor(), weight.grad, 2e-5)
        else:
            assert relative(gradient.full_tensor(), weight.grad) < 0.2, key
    assert not gradients

    if how == "mixed, inputs cast":
        return
    cache = archc.new_cache(model, batch=mine.shape[0], max_model_len=SEQ, device="cpu")
    bounds = [0, 11, *range(12, 16), SEQ]
    with torch.no_grad():
        parts = [model(mine[:, a:b], Step.at(a, b - a), cache) for a, b in itertools.pairwise(bounds)]
    found = torch.cat(parts, 1)
    if mixed:
        assert (error := relative(found, ours)) < 0.05, error
    else:
        assert_close(found, ours, 2e-5)


def main():
    rank, world, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    try:
        mesh = init_device_mesh("cpu", (world,))
        for name in ("tiny-llama", "tiny-kimi-linear"):
            for how in ("plain", "checkpointed", "mixed", "mixed, inputs cast"):
                compare(name, mesh, how)
                print(f"equal: {name}, {how}", flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
