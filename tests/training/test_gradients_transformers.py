"""Gradients of every weight, and one step of AdamW, are those that transformers' models give with the same weights.

The judge is transformers' own loss of labels, which shifts them by itself, and ``torch.optim.AdamW`` on its own weights. archc's
gradients go through its training module, whose loss takes a few tokens at a time.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.training.module import TrainingModel  # noqa: E402
from archc.training.optimizers import make_optimizer  # noqa: E402
from archc.training.options import TrainOptions  # noqa: E402
from tests.parity.conftest import OLDEST_TRANSFORMERS  # noqa: E402
from tests.parity.dense import LLAMA, LLAMA_FULL  # noqa: E402
from tests.parity.latent import KIMI_LINEAR  # noqa: E402
from tests.parity.weights import to_archc  # noqa: E402

pytestmark = pytest.mark.torch

GRADIENT_ROUNDING = 1e-5
"""Largest difference of two gradients of a weight, over the weight's largest gradient; two right float32 backwards give 4e-6."""
LEARNING_RATE = 1e-3
SMOOTH_STEP, USUAL_STEP = 3e-3, 2e-3
"""Largest difference of two steps of AdamW, in learning rates; 9e-4 and 4e-4 are met."""
UNTRAINED = 20
"""From this token on the second row has nothing to learn."""


@dataclass
class Pair:
    """transformers' model and archc's with its weights, after one backward."""

    peer: torch.nn.Module
    ours: torch.nn.Module
    family: object
    tied: dict
    shapes: dict
    losses: tuple

    def of_peer(self, read):
        """Something of each of transformers' weights, in archc's names and layouts; ``read`` takes a weight."""
        named = self.peer.named_parameters(remove_duplicate=False)
        found = {name: read(weight).detach().clone() for name, weight in named}
        return to_archc(found, self.shapes, family=self.family.name, tied=self.tied)

    def of_ours(self, read):
        return {name: read(weight).detach().clone() for name, weight in self.ours.named_parameters()}


def pair_of(family, *, loss_chunk=7):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        transformers = pytest.importorskip("transformers", minversion=OLDEST_TRANSFORMERS)
    transformers.logging.set_verbosity_error()
    from tests.parity.oracle import Oracle

    # One of its own: what other tests share may not be written to.
    oracle = Oracle(family)
    spec = archc.loads_spec(family.spec)
    params = expand(spec).params()
    ours = archc.build(spec, device="cpu")
    shapes = {name: param.shape for name, param in params.items()}
    filled = to_archc(oracle.state(), shapes, family=family.name, tied=oracle.tied())
    with torch.no_grad():
        for name, tensor in {**dict(ours.named_parameters()), **dict(ours.named_buffers())}.items():
            tensor.copy_(filled[name])

    labels = oracle.ids.clone()
    labels[1, UNTRAINED:] = -100
    theirs = oracle.model(input_ids=oracle.ids, labels=labels, use_cache=False).loss
    theirs.backward()
    targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    weight = 1 / (targets != -100).sum().float()
    loss = TrainingModel(ours, loss_chunk=loss_chunk)({"input_ids": oracle.ids}, targets, weight)
    loss.backward()
    trained = {name: param.shape for name, param in params.items() if param.trainable}
    return Pair(oracle.model, ours, family, oracle.tied(), trained, (loss.item(), theirs.item()))


@pytest.fixture(scope="module", params=[LLAMA, LLAMA_FULL, KIMI_LINEAR], ids=lambda family: family.name)
def pair(request):
    return pair_of(request.param)


def test_the_loss_is_that_of_transformers_labels(pair):
    ours, theirs = pair.losses
    assert ours == pytest.approx(theirs, rel=3e-7)


def test_every_weight_has_transformers_gradient(pair):
    expected, found = pair.of_peer(lambda weight: weight.grad), pair.of_ours(lambda weight: weight.grad)
    assert found.keys() == expected.keys() == pair.shapes.keys()
    apart = {}
    for name, gradient in expected.items():
        largest = float(gradient.abs().max())
        assert largest > 1e-5, f"{name}: transformers has no gradient to compare with"
        apart[name] = float((found[name] - gradient).abs().max()) / largest
    assert max(apart.values()) < GRADIENT_ROUNDING, max(apart.items(), key=lambda one: one[1])


def one_step(pair, eps):
    """(weight before, after transformers' step, after archc's) of each name; both steps are undone."""
    before = pair.of_ours(lambda weight: weight)
    kept = {name: weight.detach().clone() for name, weight in pair.peer.named_parameters()}
    options = TrainOptions(
        steps=1,
        seq_len=32,
        batch_size=2,
        lr=LEARNING_RATE,
        warmup_steps=0,
        schedule="constant",
        eps=eps,
        weight_decay=0.1,
    )
    # Weights of products and tables decay, and nothing else does.
    groups = [
        {
            "params": [weight for weight in pair.peer.parameters() if (weight.squeeze().dim() > 1) == decays],
            "weight_decay": wd,
        }
        for decays, wd in ((True, options.weight_decay), (False, 0.0))
    ]
    torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=options.betas, eps=eps).step()
    make_optimizer(pair.ours, options).step()
    expected, found = pair.of_peer(lambda weight: weight), pair.of_ours(lambda weight: weight)
    with torch.no_grad():
        for name, weight in pair.peer.named_parameters():
            weight.copy_(kept[name])
        for name, weight in pair.ours.named_parameters():
            weight.copy_(before[name])
    return {name: (before[name], expected[name], found[name]) for name in before}


def test_a_step_of_adamw_gives_transformers_weights(pair):
    # Adam divides a gradient by its own size, so that one of nothing but rounding moves its weight by a whole learning rate, up
    # or down. An eps far above rounding and far below most gradients makes the step a smooth function of them.
    apart = {}
    for name, (before, expected, found) in one_step(pair, eps=1e-4).items():
        assert float((expected - before).abs().max()) > 0.5 * LEARNING_RATE, name
        apart[name] = float((found - expected).abs().max()) / LEARNING_RATE
    assert max(apart.values()) < SMOOTH_STEP, max(apart.items(), key=lambda one: one[1])


def test_a_step_of_adamw_with_its_usual_eps_differs_only_where_a_gradient_is_rounding(pair):
    gradients = pair.of_peer(lambda weight: weight.grad)
    rounding = total = 0
    for name, (_, expected, found) in one_step(pair, eps=1e-8).items():
        gradient = gradients[name].abs()
        is_rounding = (gradient > 0) & (gradient < GRADIENT_ROUNDING * gradient.max())
        apart = (found - expected).abs() / LEARNING_RATE
        assert float(apart.masked_fill(is_rounding, 0.0).max()) < USUAL_STEP, name
        # Wherever it goes, it goes no further than a step that way and one the other.
        assert float(apart.max()) < 2.001
        rounding, total = rounding + int(is_rounding.sum()), total + gradient.numel()
    assert rounding / total < 0.01, "too few weights are compared"
