"""The loss that never holds the logits, against the one that does."""

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.training.loss import head_loss  # noqa: E402
from archc.training.module import TrainingModel  # noqa: E402

pytestmark = pytest.mark.torch

SEQ = 19


def batch(graph, ignored=True):
    ids = torch.randint(0, 60, (2, SEQ + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = {"input_ids": ids[:, :-1].contiguous()}, ids[:, 1:].contiguous()
    if ignored:
        targets[0, 3] = targets[1, -4:] = -100
    if graph.reads_encoder:
        inputs["encoder_input_ids"] = ids[:, 2:9].contiguous()
    return inputs, targets


def plain(model, inputs, targets, z_loss=0.0):
    """The loss over whole logits, and its gradients."""
    model.zero_grad()
    logits = model(**inputs).flatten(0, 1).float()
    flat, count = targets.flatten(), (targets != -100).sum()
    loss = torch.nn.functional.cross_entropy(logits, flat, ignore_index=-100)
    squares = (logits.logsumexp(-1).square() * (flat != -100)).sum() / count
    (loss + z_loss * squares).backward()
    return loss.item(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize(
    "spec", ["tiny-llama", "tiny-kimi-linear", "tiny-deepseek-v3", "tiny-gpt-oss", "tiny-t5", "tiny-scores"]
)
@pytest.mark.parametrize(("chunk", "z_loss"), [(None, 0.0), (7, 0.0), (8, 0.01)])
def test_value_and_gradients_are_those_of_whole_logits(spec, chunk, z_loss):
    model = archc.build(spec, device="cpu", seed=0)
    inputs, targets = batch(model.archc_graph)
    value, gradients = plain(model, inputs, targets, z_loss)
    model.zero_grad()
    training = TrainingModel(model, loss_chunk=chunk, z_loss=z_loss)
    weight = 1 / (targets != -100).sum().float()
    loss = training(inputs, targets, weight)
    loss.backward()
    assert loss.item() == pytest.approx(value, rel=1e-6)
    for name, parameter in model.named_parameters():
        bound = 1e-5 * gradients[name].abs().max().clamp(min=1e-12)
        assert (parameter.grad - gradients[name]).abs().max() <= bound, name
    with torch.no_grad():
        assert training(inputs, targets, weight).item() == pytest.approx(value, rel=1e-6)


def test_in_one_chunk_the_gradients_are_equal_to_the_bit():
    model = archc.build("tiny-llama", device="cpu", seed=0)
    inputs, targets = batch(model.archc_graph, ignored=False)
    _, gradients = plain(model, inputs, targets)
    model.zero_grad()
    TrainingModel(model)(inputs, targets, torch.tensor(1 / targets.numel())).backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gradients[name]), name


def test_no_tensor_holds_the_logits_of_all_tokens():
    model = archc.build("tiny-llama", device="cpu", seed=0)
    inputs, targets = batch(model.archc_graph)
    rows, width = model.lm_head.weight.shape
    largest = 0

    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            found = func(*args, **(kwargs or {}))
            for tensor in found if isinstance(found, tuple | list) else (found,):
                if (
                    isinstance(tensor, torch.Tensor)
                    and tensor.shape[-1:] == (rows,)
                    and tensor.dim() > 1
                    and tensor.shape[0] != width
                ):
                    largest = max(largest, tensor.numel() // rows)
            return found

    with Watching():
        TrainingModel(model, loss_chunk=8)(inputs, targets, torch.tensor(1.0)).backward()
    assert largest == 8


def test_targets_that_are_all_ignored_give_zero():
    model = archc.build("tiny-llama", device="cpu", seed=0)
    inputs, targets = batch(model.archc_graph)
    loss = TrainingModel(model)(inputs, torch.full_like(targets, -100), torch.tensor(1.0))
    loss.backward()
    assert loss.item() == 0.0
    assert all(weight.grad.abs().max() == 0 for weight in model.parameters())


def test_a_head_without_weights_has_a_loss_too():
    class Tail(torch.nn.Module):
        def forward(self, x):
            return (x,)

    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.tensor([[0, 1, 2], [3, 4, -100]])
    loss = head_loss(Tail(), [x], targets, torch.tensor(0.5))
    expected = 0.5 * torch.nn.functional.cross_entropy(
        x.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-100
    )
    assert loss.item() == pytest.approx(expected.item())
    (gradient,) = torch.autograd.grad(loss, x)
    assert torch.allclose(gradient, torch.autograd.grad(expected, x)[0], atol=1e-7)


@pytest.mark.parametrize("chunk", [512, 32])
def test_chunks_add_up_to_a_gradient_of_bfloat16_as_good_as_that_of_one_chunk(chunk):
    tokens, width, rows = 8192, 32, 256
    drawn = torch.Generator().manual_seed(0)

    class Tail(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = torch.nn.Parameter(weight)

        def forward(self, x):
            return (x @ self.weight.T,)

    weight = (0.05 * torch.randn(rows, width, generator=drawn)).bfloat16()
    x = torch.randn(1, tokens, width, generator=drawn).bfloat16()
    # Some targets are far more common than others, as words are.
    targets = (torch.rand(1, tokens, generator=drawn) ** 4 * rows).long()

    def gradient(dtype, chunk):
        tail = Tail(weight.to(dtype))
        head_loss(tail, [x.to(dtype)], targets, torch.tensor(1 / tokens), chunk=chunk).backward()
        assert tail.weight.grad.dtype == dtype
        return tail.weight.grad.double()

    exact = gradient(torch.float64, tokens)
    at_once, found = ((gradient(torch.bfloat16, size) - exact).norm() for size in (tokens, chunk))
    assert found <= 1.25 * at_once


@pytest.mark.parametrize("chunk", [None, 2])
def test_weights_that_are_added_have_a_gradient_each(chunk):
    class Tail(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Parameter(torch.ones(5))
            self.second = torch.nn.Parameter(torch.zeros(5))

        def forward(self, x):
            return (x * (self.first + self.second),)

    tail = Tail()
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.tensor([[0, 1, 2], [3, 4, -100]])
    head_loss(tail, [x], targets, torch.tensor(0.5), chunk=chunk).backward()
    expected = torch.nn.functional.cross_entropy(
        x.flatten(0, 1) * (tail.first + tail.second), targets.flatten(), reduction="sum"
    )
    wanted = torch.autograd.grad(0.5 * expected, [tail.first, tail.second, x])
    for found, want in zip((tail.first.grad, tail.second.grad, x.grad), wanted, strict=True):
        assert torch.allclose(found, want, atol=1e-6)
