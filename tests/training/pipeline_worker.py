"""One rank of a pipelined model: ``python pipeline_worker.py RANK WORLD RENDEZVOUS``."""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import archc
from archc import Parallel, load_spec, loads_spec
from archc.expansion import as_graph
from archc.torch_backend.build import graph_of
from archc.training.clipping import clip_gradients
from archc.training.module import TrainingModel
from archc.training.objectives.batch import Batch
from archc.training.optimizers import make_optimizer
from archc.training.options import TrainOptions
from archc.training.parallel.initialise import fill
from archc.training.parallel.stage import weights_here
from archc.training.parallel.world import World, open_world
from archc.training.prepare import prepare
from tests.plugins.specs import tiny
from tests.torch_backend.examples import assert_close, lively, small_spec, tokens
from tests.training.compared import as_rank

ROWS, SEQ = 8, 16
TOLERANCES = {"float32": 1e-5, "bfloat16": 5e-2}
"""Of what is computed in a dtype, beside one process that computes in it, on all rows at once."""


def stacked(block, layers=4, more=""):
    return loads_spec(tiny(stack=f"{{num_layers: {layers}, block: {block}, mixer: mixer, ffn: ffn}}", more=more))


RESIDUALS = stacked("{kind: attention_residual, block_size: 2}", 5)
STREAMS = stacked("{kind: hyper_connections, num_streams: 3, sinkhorn_iters: 2, eps: 1e-3}")
UNTIED = small_spec(layers=5)

CASES = {
    2: [
        ("tiny-llama", Parallel(pp=2), {"pp_schedule": "gpipe"}),
        ("tiny-llama", Parallel(pp=2), {"recompute": "full"}),
        (UNTIED, Parallel(pp=2), {"z_loss": 1e-3, "loss_chunk": 5}),
        ("tiny-kimi-linear", Parallel(pp=2), {"recompute": "selective"}),
        ("tiny-deepseek-v3", Parallel(pp=2), {}),
        ("tiny-t5", Parallel(pp=2), {}),
        (RESIDUALS, Parallel(pp=2), {}),
        (STREAMS, Parallel(pp=2), {"pp_schedule": "gpipe"}),
        # One micro-batch on two stages.
        (UNTIED, Parallel(pp=2), {"micro_batch_size": ROWS}),
        ("tiny-llama", Parallel(pp=2), {"dtype": "bfloat16"}),
    ],
    4: [
        ("tiny-llama", Parallel(pp=4), {"micro_batch_size": 1}),
        ("tiny-llama", Parallel(pp=2, dp=2), {"micro_batch_size": 1}),
        (UNTIED, Parallel(pp=4), {"pp_schedule": "gpipe"}),
        ("tiny-kimi-linear", Parallel(pp=2, dp=2), {"recompute": "full"}),
        ("tiny-deepseek-v3", Parallel(pp=2, dp=2), {}),
        ("tiny-t5", Parallel(pp=4), {}),
        (RESIDUALS, Parallel(pp=4), {}),
        (STREAMS, Parallel(pp=2, dp=2), {}),
        ("tiny-llama", Parallel(pp=2, cp=2), {}),
        ("tiny-llama", Parallel(pp=2, tp=2), {}),
        ("tiny-deepseek-v3", Parallel(pp=2, tp=2), {"pp_schedule": "gpipe"}),
        ("tiny-deepseek-v3", Parallel(pp=2, dp=2, ep=2), {}),
    ],
}
"""Parallels that take so many ranks, each with the options of a run."""


STEPS = {
    2: [("tiny-llama", Parallel(pp=2), {})],
    4: [("tiny-llama", Parallel(pp=2, dp=2), {"pp_schedule": "gpipe", "zero": 2}), ("tiny-t5", Parallel(pp=4), {})],
}
"""Some with tied tables, on two stages and on three, that take optimizer steps."""


def batch_for(graph):
    """Rows of which some positions have nothing to learn; for a decoder with its encoder, a padded source too."""
    ids = tokens(ROWS, SEQ + 1, graph.vocab_size)
    inputs, targets = {"input_ids": ids[:, :-1]}, ids[:, 1:].clone()
    targets[1, SEQ // 2 :] = -100
    targets[3, ::3] = -100
    if graph.reads_encoder:
        mask = torch.ones(ROWS, SEQ - 5, dtype=torch.int64)
        mask[2, 7:] = 0
        inputs |= {"encoder_input_ids": tokens(ROWS, SEQ - 5, graph.vocab_size, 1), "encoder_attention_mask": mask}
    return Batch(inputs, targets)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(spec, parallel, given):
    """A step of a pipelined model beside one process: the loss, its evaluation, and every gradient by name over all ranks."""
    plain = lively(spec)
    weights = {name: tensor.detach().clone() for name, tensor in weights_here(plain, graph_of(plain)).items()}
    graph = as_graph(load_spec(spec) if isinstance(spec, str) else spec)
    options = TrainOptions(
        **{"steps": 1, "seq_len": SEQ, "batch_size": ROWS, "micro_batch_size": 2, **given}, parallel=parallel
    )
    batch, tolerance = batch_for(graph), TOLERANCES[options.dtype]
    weight = 1 / (batch.targets != -100).sum().float()
    reference = TrainingModel(archc.cast(plain, options.dtype), z_loss=options.z_loss)
    expected = reference(batch.inputs, batch.targets, weight)
    expected.backward()

    world = open_world(parallel)
    prepared = prepare(graph, options.check(), world, initialised=False)
    model, engine = prepared.module.model, prepared.engine
    fill(model, graph, iter(weights.items()))
    start = world.index("dp") * options.copy_rows
    size = options.micro_rows
    mine = [batch.rows(first, first + size) for first in range(start, start + options.copy_rows, size)]
    assert_close(world.all_sum(engine.evaluate(mine, weight)), expected, tolerance)
    for _ in range(2):
        # A second step over the same buffers.
        for parameter in model.parameters():
            parameter.grad = None
        assert_close(world.all_sum(engine.forward_backward(mine, weight)), expected, tolerance)
    assert_close(world.all_sum(engine.evaluate(mine, weight)), expected, tolerance)

    # A mixture of one value scores nothing, so its weights have no gradient.
    here = {name: whole(weight.grad) for name, weight in model.named_parameters() if weight.grad is not None}
    there = [None] * world.size
    dist.all_gather_object(there, {world.index("pp"): here})
    stages = {index: grads for each in there for index, grads in each.items()}
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}
    held = {}
    for index in range(parallel.pp):
        for name, gradient in stages[index].items():
            try:
                assert_close(gradient, wanted[name], tolerance)
            except AssertionError as error:
                raise AssertionError(f"{name} on stage {index}: {error}") from None
            held.setdefault(name, []).append(index)
            # Copies are equal to the bit, and stay so.
            assert torch.equal(gradient, stages[held[name][0]][name]), name
    assert set(held) == set(wanted)
    shared = prepared.module.stage.shared
    assert {name: tuple(places) for name, places in held.items() if len(places) > 1} == shared


def follow(spec, parallel, given, *, steps=4):
    """Optimizer steps of a pipelined model beside one process: each loss and norm, and copies that stay equal to the bit."""
    graph = as_graph(load_spec(spec) if isinstance(spec, str) else spec)
    options = TrainOptions(
        **{
            "steps": steps,
            "seq_len": SEQ,
            "batch_size": ROWS,
            "micro_batch_size": 2,
            "lr": 1e-2,
            "clip_norm": 0.1,
            **given,
        },
        parallel=parallel,
    )
    batch = batch_for(graph)
    weight = 1 / (batch.targets != -100).sum().float()

    def losses(world, own):
        prepared = prepare(graph, own, world)
        optimizer = make_optimizer(prepared.module, own)
        start = world.index("dp") * own.copy_rows
        mine = [
            batch.rows(first, first + own.micro_rows) for first in range(start, start + own.copy_rows, own.micro_rows)
        ]
        found = []
        for _ in range(steps):
            loss = prepared.engine.forward_backward(mine, weight)
            norm = clip_gradients(prepared.module.parameters(), own.clip_norm, world, elsewhere=prepared.elsewhere)
            optimizer.step()
            optimizer.zero_grad()
            found.append((world.all_sum(loss).item(), norm.item()))
        return found, prepared

    expected, _ = losses(World(Parallel(), torch.device("cpu")), replace(options, parallel=Parallel()))
    world = open_world(parallel)
    got, prepared = losses(world, options)
    assert expected[-1][0] < expected[0][0]
    assert torch.allclose(torch.tensor(got), torch.tensor(expected), rtol=2e-5, atol=0), f"{got}, not {expected}"
    stage = prepared.module.stage
    held = weights_here(prepared.module.model, graph)
    tables = {name: whole(held[name].detach()) for name in stage.shared if name in held}
    there = [None] * world.size
    dist.all_gather_object(there, tables)
    for name, places in stage.shared.items():
        copies = [each[name] for each in there if name in each]
        assert len(copies) == len(places) * world.size // stage.count
        assert all(torch.equal(copy, copies[0]) for copy in copies), name


def main(size):
    for spec, parallel, given in STEPS[size]:
        follow(spec, parallel, given)
    for spec, parallel, given in CASES[size]:
        try:
            compare(spec, parallel, given)
        except Exception as error:
            name = spec if isinstance(spec, str) else spec.name
            while error.__cause__ is not None:
                error = error.__cause__
            raise AssertionError(f"{name}, {parallel}, {given}: {error}") from error


if __name__ == "__main__":
    as_rank(main)
