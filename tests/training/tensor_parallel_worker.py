"""One rank of tensor parallelism: ``python tensor_parallel_worker.py RANK WORLD RENDEZVOUS WAYS CASES…``.

Compares loss and every gradient with the same model on one process.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import archc
from archc.planning.parallel import Parallel
from archc.planning.sharding import shard
from archc.training.module import TrainingModel
from archc.training.parallel.tensor import cut, vocab_loss
from archc.training.parallel.world import open_world
from tests.training.tensor_parallel_cases import EVERY, SHIPPED, graph_of_case

BATCH, SEQ = 2, 24
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


def model_of(graph, dtype):
    """A model whose weights, biases and gates are all at work."""
    model = archc.build(graph, device="cpu", seed=0, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            spread = 0.05 if weight.dim() > 1 else 0.2
            weight.add_(torch.randn(weight.shape, generator=generator).to(weight.dtype) * spread)
    return model


def batch_of(graph):
    generator = torch.Generator().manual_seed(2)
    vocab = min(graph.vocab_size or 30, graph.outputs["logits"].width)
    ids = torch.randint(0, vocab, (BATCH, SEQ), generator=generator)
    targets = torch.randint(0, vocab, (BATCH, SEQ), generator=generator)
    targets[0, :3] = -100
    inputs = {"input_ids": ids}
    if graph.reads_encoder:
        inputs["encoder_input_ids"] = torch.randint(0, vocab, (BATCH, SEQ - 5), generator=generator)
    return inputs, targets, torch.tensor(1.0 / (targets != -100).sum().item())


class Exchanges(TorchDispatchMode):
    """Counts what ranks exchange. torch's own counter follows modules, which a loss that takes gradients in forward stops."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "_c10d_functional" and "wait" not in func._schema.name:
            name = func._schema.name.partition("::")[2]
            self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def difference(found, expected):
    return ((found - expected).norm() / expected.norm().clamp(min=1e-12)).item()


def compare(name, world):
    graph = graph_of_case(name)
    dtype = torch.float32 if name in SHIPPED else torch.float64
    tolerance = TOLERANCES[dtype]
    inputs, targets, weight = batch_of(graph)
    plain, model = model_of(graph, dtype), model_of(graph, dtype)
    # The squares of the log-partition are float32 whatever the model is.
    options = {"z_loss": 1e-3 if dtype == torch.float32 else 0.0, "loss_chunk": 20}
    expected = TrainingModel(plain, **options)(inputs, targets, weight)
    expected.backward()

    rank = cut(model, graph, world)
    held = {
        full: each for each in shard(graph, world.parallel, vocab_multiple=1).stages[0].params for full in each.names
    }
    module = TrainingModel(model, criterion=vocab_loss(rank, world), **options)
    with Exchanges() as counter:
        loss = module(inputs, targets, weight)
    sums = counter.counts
    assert abs(loss.item() - expected.item()) < tolerance * expected.item(), (loss.item(), expected.item())
    loss.backward()
    gradients, worst = dict(plain.named_parameters()), 0.0
    for full, cut_weight in model.named_parameters():
        local = tuple(cut_weight.to_local().shape)
        if "vocab" not in held[full].param.axes:
            assert local == held[full].shape, (full, local, held[full].shape)
        wanted = gradients.pop(full).grad
        if wanted is None:
            assert cut_weight.grad is None or not cut_weight.grad.full_tensor().any(), full
            continue
        found = difference(cut_weight.grad.full_tensor(), wanted)
        assert found < tolerance, (name, full, found)
        worst = max(worst, found)
    assert not gradients, list(gradients)
    return worst, sums, rank.exchanges()


def main():
    number, size, rendezvous, ways, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(number), world_size=int(size))
    try:
        world = open_world(Parallel(tp=int(ways), dp=int(size) // int(ways)), "cpu")
        for name in names or (*SHIPPED, *EVERY):
            try:
                worst, sums, exchanges = compare(name, world)
            except Exception as e:
                import traceback

                print(
                    f"FAILED: {name}: {type(e).__name__} {str(e)[:300]}",
                    traceback.format_exc()[-700:] if not isinstance(e, (archc.errors.SpecError,)) else "",
                )
                continue
            print(f"equal: {name} {worst:.1e} {sums} {dict(exchanges)}", flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
