"""A cut model's loss and gradients beside those of the same weights in one process."""

import json
import sys
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import archc
from archc.torch_backend.build import graph_of
from archc.training.module import TrainingModel
from archc.training.objectives.batch import Batch
from archc.training.options import TrainOptions
from archc.training.parallel import context, experts
from archc.training.parallel.fsdp import shard_weights
from archc.training.parallel.world import open_world
from tests.torch_backend.examples import assert_close, ids_for, lively
from tests.training.learner import Learner

BATCH, SEQ, TOLERANCE, STEPS = 4, 16, 1e-5, 4


def shallow(name):
    """A shipped spec with as few layers as have all of its kinds."""
    layers = {"tiny-kimi-linear": 4, "tiny-scores": 6}.get(name, 2)
    return archc.load_spec(name, [f"stack.num_layers={layers}"])


def batch_for(model, seq=SEQ):
    """Rows whose targets are the next ids, but for some that nothing is learned from."""
    ids = ids_for(model, BATCH, seq + 1)
    targets = ids[:, 1:].clone()
    targets[1, seq // 2 :] = -100
    targets[3, ::3] = -100
    return Batch({"input_ids": ids[:, :-1]}, targets)


def run(module, batch, step=None, *, weight):
    """The loss, detached; gradients lie in the weights."""
    inputs = batch.inputs if step is None else {**batch.inputs, "step": step}
    loss = module(inputs, batch.targets, weight)
    loss.backward()
    return loss.detach()


def compare(spec, parallel, *, change=None, mode="none", seq=SEQ, idle=False, dtype=torch.float32):
    """One step of a model over the ranks of this process's group, and the same in one process; the world comes back.

    ``change`` is done to both before. ``idle``: some weights have no part in the loss.
    """
    plain, cut = lively(spec, dtype=dtype), lively(spec, dtype=dtype)
    for model in (plain, cut):
        if change is not None:
            change(model)
    graph, batch = graph_of(cut), batch_for(plain, seq)
    weight = 1 / (batch.targets != -100).sum().float()
    expected = run(TrainingModel(plain), batch, weight=weight)

    world = open_world(parallel)
    options = TrainOptions(steps=1, seq_len=seq, batch_size=BATCH, parallel=parallel)
    experts.share(cut, graph, world)
    context.cut(cut, graph, world)
    archc.recompute(cut, mode)
    module = shard_weights(TrainingModel(cut), graph, world, options)
    rows = BATCH // parallel.dp
    mine = batch.rows(world.index("dp") * rows, (world.index("dp") + 1) * rows)
    loss = world.all_sum(run(module, *context.cut_batch(mine, world), weight=weight))
    assert_close(loss, expected, TOLERANCE)
    found = dict(cut.named_parameters())
    for name, wanted in plain.named_parameters():
        gradient = found.pop(name).grad
        assert isinstance(gradient, DTensor), name
        assert wanted.grad.abs().max() > 0 or idle, name
        try:
            assert_close(gradient.full_tensor(), wanted.grad, TOLERANCE)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    assert not found
    return world


def say_losses(name, parallel, **options):
    """Print the losses of some steps through ``archc.training.prepare``, to be compared with those of one process."""
    losses = Learner(name, parallel=parallel, **options).learn(STEPS)
    print(json.dumps({"name": name, "parallel": str(parallel), "losses": losses}), flush=True)


def assert_losses_of_one_process(output):
    """Every printed run gave the losses that one process gives, within the rounding of the steps before them."""
    runs = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert runs
    for run in runs:
        expected = losses_of_one_process(run["name"])
        assert run["losses"] == pytest.approx(expected, rel=2e-5, abs=0), run


@cache
def losses_of_one_process(name):
    return Learner(name).learn(STEPS)


def as_rank(work):
    """Run a worker's ``main`` in a group of processes that its arguments describe."""
    rank, size, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    try:
        work(size)
    finally:
        dist.destroy_process_group()
