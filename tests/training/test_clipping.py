import pytest
import torch

import archc
from archc.planning.parallel import Parallel
from archc.training.clipping import clip_gradients
from archc.training.parallel.world import World

ALONE = World(Parallel(), torch.device("cpu"))


def model_with_gradients():
    model = archc.build("tiny-llama", device="cpu", seed=0)
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)
    return model


@pytest.mark.parametrize("max_norm", [1.0, 1e6])
def test_one_process_clips_as_torch_to_the_last_bit(max_norm):
    expected, found = model_with_gradients(), model_with_gradients()
    norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), max_norm)
    assert torch.equal(clip_gradients(found.parameters(), max_norm, ALONE), norm)
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("off", [None, 0])
def test_the_norm_is_told_when_nothing_is_clipped(off):
    expected, found = model_with_gradients(), model_with_gradients()
    norm = clip_gradients(found.parameters(), off, ALONE)
    together = torch.cat([weight.grad.flatten() for weight in expected.parameters()]).double()
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(together.norm().item(), rel=1e-6)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(found.parameters(), expected.parameters(), strict=True))


def test_weights_without_a_gradient_count_nothing():
    weights = [torch.nn.Parameter(torch.zeros(4)) for _ in range(2)]
    weights[0].grad = torch.full((4,), 2.0)
    assert clip_gradients(weights, None, ALONE).item() == 4.0
    assert clip_gradients(weights[1:], 1.0, ALONE).item() == 0.0


def test_a_gradient_that_is_no_number_is_told():
    weight = torch.nn.Parameter(torch.zeros(4))
    weight.grad = torch.tensor([1.0, float("nan"), 0.0, 0.0])
    assert clip_gradients([weight], 1.0, ALONE).isnan()
