"""A hybrid, a mixture of experts and a model with latent attention each learn one batch by heart."""

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.training.clipping import clip_gradients  # noqa: E402
from archc.training.objectives.batch import Batch  # noqa: E402
from archc.training.optimizers import make_optimizer  # noqa: E402
from archc.training.options import TrainOptions  # noqa: E402
from archc.training.parallel.world import open_world  # noqa: E402
from archc.training.prepare import prepare  # noqa: E402
from archc.training.routers import update_biases  # noqa: E402
from archc.training.schedules import lr_at, set_lr  # noqa: E402

pytestmark = pytest.mark.torch

BATCH, SEQ = 2, 24
NEAR_ZERO = 0.01
"""Nats a token; a guess among all ids begins at about 7."""
MODELS = {
    "tiny-kimi-linear": ["stack.num_layers=4"],
    "tiny-gpt-oss": [],
    "tiny-deepseek-v3": ["mtp=null"],
}
"""Three layers of KDA to one of latent attention; experts beside windows with sinks; latent attention. All have experts."""


@pytest.mark.parametrize("name", MODELS)
def test_one_batch_of_random_ids_is_learned_by_heart(name):
    graph = archc.expand(archc.load_spec(name, MODELS[name]))
    options = TrainOptions(
        steps=100, seq_len=SEQ, batch_size=BATCH, lr=5e-3, warmup_steps=5, weight_decay=0.0, device="cpu"
    )
    world = open_world(options.parallel, options.device)
    prepared = prepare(graph, options, world)
    optimizer = make_optimizer(prepared.module, options)
    ids = torch.randint(0, graph.vocab_size, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(0))
    batch = Batch({"input_ids": ids[:, :-1]}, ids[:, 1:])
    weight = torch.tensor(1 / (BATCH * SEQ))
    losses = []
    for step in range(1, options.steps + 1):
        set_lr(optimizer, lr_at(step, options))
        losses.append(float(prepared.engine.forward_backward([batch], weight)))
        clip_gradients(prepared.module.parameters(), options.clip_norm, world)
        optimizer.step()
        update_biases(prepared.module, options, world)
        optimizer.zero_grad()
        if losses[-1] < NEAR_ZERO:
            break
    assert losses[0] > 6
    assert losses[-1] < NEAR_ZERO, losses[::10]
