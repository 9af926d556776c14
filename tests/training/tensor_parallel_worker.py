"""One rank of tensor parallelism: ``python tensor_parallel_worker.py RANK WORLD RENDEZVOUS GROUP…``.

Compares loss and every gradient with the same model in one process.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import archc
from archc.planning.parallel import Parallel
from archc.planning.sharding import shard
from archc.torch_backend.build import graph_of
from archc.training.module import TrainingModel
from archc.training.options import TrainOptions
from archc.training.parallel.fsdp import shard_weights
from archc.training.parallel.tensor import cut, vocab_loss
from archc.training.parallel.world import open_world
from tests.torch_backend.examples import enliven
from tests.training.tensor_parallel_cases import GROUPS, graph_of_case

BATCH, SEQ, CHUNK = 2, 24, 20
WAYS = {"four": 4}
"""Ranks of tp by group, two elsewhere; others are copies."""


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


def batch_of(graph):
    generator = torch.Generator().manual_seed(2)
    vocab = min(graph.vocab_size or 30, graph.outputs["logits"].width)
    inputs = {"input_ids": torch.randint(0, vocab, (BATCH, SEQ), generator=generator)}
    targets = torch.randint(0, vocab, (BATCH, SEQ), generator=generator)
    targets[0, :3] = -100
    if graph.reads_encoder:
        inputs["encoder_input_ids"] = torch.randint(0, vocab, (BATCH, SEQ - 5), generator=generator)
    return inputs, targets, torch.tensor(1.0 / (targets != -100).sum().item())


def whole_gradients(graph, dtype, options):
    """(loss, gradients, the model) of one process; the same on every rank."""
    inputs, targets, weight = batch_of(graph)
    plain = enliven(archc.build(graph, device="cpu", seed=0, dtype=dtype))
    loss = TrainingModel(plain, **options)(inputs, targets, weight)
    loss.backward()
    return loss.item(), {name: each.grad for name, each in plain.named_parameters()}


def check_pieces(model, graph, parallel):
    """A rank holds what the plan says, but for a vocabulary's last ranks, which hold less."""
    stages = shard(graph, parallel, vocab_multiple=1).stages
    held = {full: each for each in stages[0].params for full in each.names}
    for full, weight in model.named_parameters():
        local, planned = tuple(weight.to_local().shape), held.pop(full)
        if "vocab" in planned.param.axes:
            assert dist.get_rank() or local == planned.shape, (full, local, planned.shape)
            assert weight.full_tensor().shape == planned.param.shape, full
        else:
            assert local == planned.shape, (full, local, planned.shape)
    assert not [full for full, each in held.items() if each.param.trainable]


def check_gradients(model, expected, tolerance):
    """Every weight's gradient, against its own size, or a thousandth of all gradients' where it is next to nothing."""
    expected = dict(expected)
    least = 1e-3 * torch.stack([each.norm() for each in expected.values() if each is not None]).norm().item()
    worst = 0.0
    for full, weight in model.named_parameters():
        wanted = expected.pop(full)
        if wanted is None:
            assert weight.grad is None or not weight.grad.full_tensor().any(), full
            continue
        error = ((weight.grad.full_tensor() - wanted).norm() / wanted.norm().clamp(min=least)).item()
        # A decay's gradient is a sum over tokens of what nearly cancels. It is float32 in a float64 model, too.
        allowed = max(tolerance, 1e-6 if wanted.dtype == torch.float32 else 0) * (3 if full.endswith("A_log") else 1)
        assert error < allowed, (full, error)
        worst = max(worst, error)
    assert not expected
    return worst


def compare(name, world, *, dtype, how=""):
    graph = graph_of_case(name)
    tolerance = 1e-5
    if dtype == torch.float64:
        # Routers are float32 in a float64 model.
        tolerance = 3e-6 if any("router" in full for full in graph.params()) else 2e-8
    # The squares of the log-partition are float32 whatever the model is.
    options = {"z_loss": 1e-3 if dtype == torch.float32 else 0.0, "loss_chunk": CHUNK}
    loss, gradients = whole_gradients(graph, dtype, options)
    model = enliven(archc.build(graph, device="cpu", seed=0, dtype=dtype))
    rank = cut(model, graph, world)
    assert graph_of(model) is graph
    if how == "recomputed":
        archc.recompute(model, "selective")
    if how == "compiled":
        for layer in model.layers:
            layer.compile(backend="aot_eager", fullgraph=True)
    module = TrainingModel(model, criterion=vocab_loss(rank, world), **options)
    inputs, targets, weight = batch_of(graph)
    copies = world.parallel.dp
    if copies == 1:
        check_pieces(model, graph, world.parallel)
    else:
        train = TrainOptions(steps=1, seq_len=SEQ, batch_size=BATCH, parallel=world.parallel)
        shard_weights(module, graph, world, train)
        rows = slice(world.index("dp") * BATCH // copies, (world.index("dp") + 1) * BATCH // copies)
        inputs, targets = {key: value[rows] for key, value in inputs.items()}, targets[rows]
    with nullcontext(Exchanges()) if how == "compiled" else Exchanges() as counter:
        found = module(inputs, targets, weight)
    found.backward()
    total = world.all_sum(found, "dp_cp").item()
    assert abs(total - loss) < max(tolerance, 1e-7) * loss, (total, loss)
    worst = check_gradients(model, gradients, tolerance)
    return worst, counter.counts, rank


def check_exchanges(case, counts, rank):
    """Forward has a sum for each that the rank's graph says, and for each chunk of the loss, whose gradients are taken there, two
    of numbers a token and one of the head's input."""
    assert counts["all_reduce"] == rank.exchanges()["sum_parts"] + 3 * -(-BATCH * SEQ // CHUNK), (case, counts)


def main():
    number, size, rendezvous, *groups = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(number), world_size=int(size))
    try:
        for group in groups:
            ways = WAYS.get(group, 2)
            world = open_world(Parallel(tp=ways, dp=int(size) // ways), "cpu")
            dtype = torch.float64 if group in ("shipped", "every", "four") else torch.float32
            for case in GROUPS[group]:
                name, _, how = case.partition(", ")
                try:
                    worst, counts, rank = compare(name, world, dtype=dtype, how=how)
                except AssertionError as error:
                    raise AssertionError(f"{case}: {error}") from error
                if rank.vocab_rows is not None and not how and world.parallel.dp == 1:
                    check_exchanges(case, counts, rank)
                print(f"{group}: {case}: {worst:.1e}", flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
