"""One rank of a real tensor-parallel group: ``python tensor_parallel_worker.py RANK WORLD RENDEZVOUS``.

``parallelize_module`` cuts a built model by a plan that is written here by hand; the local shapes are compared with ``shard``.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import archc
from archc.planning.sharding import shard

COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
ROWS = ("o_proj", "down_proj", "embed_tokens")
CASES = (
    ("tiny-llama", ("embedding.tie_word_embeddings=false",)),
    ("tiny-llama", ("embedding.tie_word_embeddings=false", "tokenizer.vocab_size=1001")),
    ("qwen2.5-7b", ("stack.num_layers=2",)),
)


def plan_of(model):
    """Column- and row-parallel layers by their names, as Megatron-LM cuts a decoder."""
    plan = {}
    for name, _ in model.named_modules():
        last = name.rpartition(".")[2]
        if last in COLUMNS:
            plan[name] = ColwiseParallel()
        elif last in ROWS:
            plan[name] = RowwiseParallel()
    return plan


def compare(name, overrides, mesh):
    spec = archc.load_spec(name, overrides)
    graph = archc.expand(spec)
    model = archc.build(graph, device="meta")
    parallelize_module(model, mesh, plan_of(model))
    sharding = shard(graph, archc.Parallel(tp=mesh.size()), vocab_multiple=1).check()
    planned = {full: each for each in sharding.stages[0].params for full in each.names}
    for full, weight in model.named_parameters():
        each = planned.pop(full)
        local = tuple(weight.to_local().shape) if hasattr(weight, "to_local") else tuple(weight.shape)
        if "vocab" in each.param.axes:
            # The first rank has most rows, and its share is what is planned.
            assert local[0] <= each.shape[0] < local[0] + 2, (full, local, each.shape)
            assert mesh.get_local_rank() or local == each.shape, (full, local, each.shape)
        else:
            assert local == each.shape, (full, local, each.shape)
    assert not planned


def main():
    rank, world, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    try:
        mesh = init_device_mesh("cpu", (world,))
        for name, overrides in CASES:
            compare(name, overrides, mesh)
            print(f"equal: {name} {overrides}", flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
