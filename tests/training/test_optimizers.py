from dataclasses import replace
from pathlib import Path

import pytest
import torch

import archc
from archc.graph.graph import LAYER
from archc.planning.sharding import Parallel, shard
from archc.planning.training.optimizers import optimizer_named
from archc.planning.training.weights import WeightOptions, weight_bytes
from archc.training.module import TrainingModel
from archc.training.muon import Muon
from archc.training.optimizers import ensure_state, make_optimizer, named_states, state_names
from archc.training.options import TrainOptions
from tests.torch_backend.examples import FFNS, KDA, MIXERS, ids_for, small_spec
from tests.training.ranks import run_ranks

OPTIONS = TrainOptions(steps=10, seq_len=8, batch_size=2, lr=0.01, weight_decay=0.3, betas=(0.8, 0.9), eps=1e-6)
HYBRID = small_spec(f"{{{KDA}}}", FFNS["moe softmax normed"], layers=1)


def give_gradients(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)


def decayed(optimizer):
    """Names of the weights that decay."""
    params = {id(param) for group in optimizer.param_groups if group["weight_decay"] for param in group["params"]}
    return {name for name, param in optimizer.names.items() if id(param) in params}


def moved_by(optimizer, part):
    params = {id(param) for group in optimizer.parts[part].param_groups for param in group["params"]}
    return {name for name, param in optimizer.names.items() if id(param) in params}


def test_three_steps_of_adamw_are_torchs_with_groups_by_hand():
    found, expected = (archc.build(HYBRID, device="cpu", seed=0) for _ in range(2))
    optimizer = make_optimizer(TrainingModel(found), OPTIONS)
    no_decay = ("norm", "A_log", "dt_bias", "bias")
    named = dict(expected.named_parameters())
    by_hand = torch.optim.AdamW(
        [
            {"params": [p for n, p in named.items() if not any(word in n for word in no_decay)], "weight_decay": 0.3},
            {"params": [p for n, p in named.items() if any(word in n for word in no_decay)], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.8, 0.9),
        eps=1e-6,
        fused=True,
    )
    for step in range(3):
        for model in (found, expected):
            give_gradients(model, step)
        optimizer.step()
        by_hand.step()
    for name, weight in found.named_parameters():
        assert torch.equal(weight, named[name]), name


def test_one_step_of_adamw_is_the_formula_in_float64():
    model = archc.build(HYBRID, device="cpu", seed=0)
    before = {name: weight.detach().double() for name, weight in model.named_parameters()}
    optimizer = make_optimizer(model, OPTIONS)
    give_gradients(model)
    optimizer.step()
    for name, weight in model.named_parameters():
        grad = weight.grad.double()
        decay = 0.01 * 0.3 if name in decayed(optimizer) else 0.0
        expected = before[name] * (1 - decay) - 0.01 * grad / (grad.abs() + 1e-6)
        torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-6, atol=1e-7)


def test_decay_acts_on_matrices_kernels_and_tables_and_on_nothing_else():
    model = archc.build("tiny-kimi-linear", device="cpu", seed=0)
    names = decayed(make_optimizer(model, OPTIONS))
    for name, weight in model.named_parameters():
        assert (name in names) == (weight.dim() > 1), name
    without = decayed(make_optimizer(model, replace(OPTIONS, decay_embeddings=False)))
    assert names - without == {"embed_tokens.weight"}


def test_decay_rates_of_two_dimensions_do_not_decay():
    model = archc.build(small_spec(MIXERS["mamba1"]), device="cpu", seed=0)
    names = decayed(make_optimizer(model, OPTIONS))
    rates = {name for name, weight in model.named_parameters() if name.endswith("A_log") and weight.dim() == 2}
    assert len(rates) == 2
    assert not rates & names


def test_a_tied_table_is_moved_once():
    model = archc.build(small_spec(tied=True), device="cpu", seed=0)
    optimizer = make_optimizer(model, OPTIONS)
    held = [id(param) for group in optimizer.param_groups for param in group["params"]]
    assert len(held) == len(set(held)) == len(list(model.parameters()))


def test_buffers_and_correction_biases_are_moved_by_no_optimizer():
    model = archc.build("tiny-deepseek-v3", device="cpu", seed=0)
    optimizer = make_optimizer(model, replace(OPTIONS, optimizer="muon"))
    assert set(optimizer.names) == {name for name, _ in model.named_parameters()}
    buffers = {buffer.data_ptr() for buffer in model.buffers()}
    assert not buffers & {param.data_ptr() for group in optimizer.param_groups for param in group["params"]}


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32)])
def test_muon_moves_a_matrix_as_torchs_to_the_last_bit(shape):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    found, expected = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    ours = Muon([found], lr=0.02, momentum=0.9, weight_decay=0.1)
    torchs = torch.optim.Muon([expected], lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        found.grad = expected.grad = torch.randn(shape, generator=generator)
        ours.step()
        torchs.step()
    assert torch.equal(found, expected)


def newton_schulz(matrix):
    """Five quintic steps in float64 (Muon, Jordan et al. 2024; the coefficients of arXiv 2502.16982)."""
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def test_muon_is_moonlights_formula_in_float64():
    generator = torch.Generator().manual_seed(0)
    lr, mu, decay = 0.02, 0.95, 0.1
    weight = torch.nn.Parameter(torch.randn(24, 40, generator=generator))
    expected, momentum = weight.detach().double(), torch.zeros(24, 40, dtype=torch.float64)
    optimizer = Muon([weight], lr=lr, momentum=mu, weight_decay=decay)
    for _ in range(2):
        weight.grad = torch.randn(24, 40, generator=generator)
        before = weight.detach().double()
        optimizer.step()
        momentum = mu * momentum + weight.grad.double()
        update = newton_schulz(mu * momentum + weight.grad.double())
        expected = before - lr * (0.2 * 40**0.5 * update + decay * before)
        # The iteration runs in bfloat16, whose products have three digits.
        error = (weight.detach().double() - expected).norm() / (expected - before).norm()
        assert error < 0.02, error
        rms = ((weight.detach().double() - before * (1 - lr * decay)) / lr).square().mean().sqrt()
        assert 0.12 < rms < 0.28


def test_each_expert_of_a_stack_is_a_matrix_of_its_own():
    generator = torch.Generator().manual_seed(0)
    start, grad = (torch.randn(3, 16, 12, generator=generator) for _ in range(2))
    stack = torch.nn.Parameter(start.clone())
    stack.grad = grad
    Muon([stack], lr=0.02).step()
    for expert in range(3):
        alone = torch.nn.Parameter(start[expert].clone())
        alone.grad = grad[expert]
        torch.optim.Muon([alone], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw").step()
        assert torch.equal(stack[expert], alone)


def test_muon_moves_products_inside_layers_and_adamw_the_rest():
    model = archc.build("tiny-kimi-linear", device="cpu", seed=0)
    optimizer = make_optimizer(model, replace(OPTIONS, optimizer="muon"))
    by_muon = moved_by(optimizer, 0)
    assert isinstance(optimizer.parts[0], Muon)
    for name, weight in model.named_parameters():
        inside = LAYER.match(".".join(name.split(".")[:2])) is not None
        assert (name in by_muon) == (inside and weight.dim() > 1 and "conv" not in name), name


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize("spec", ["tiny-kimi-linear", "tiny-gpt-oss"])
def test_states_take_the_bytes_of_the_plan(kind, spec):
    model = archc.build(spec, device="cpu", seed=0)
    optimizer = make_optimizer(model, replace(OPTIONS, optimizer=kind))
    states = named_states(optimizer)
    whole = shard(archc.expand(archc.load_spec(spec)), Parallel(), vocab_multiple=1).check().stages
    options = WeightOptions("float32", optimizer_named(kind), has_masters=False, grad_dtype=None, zero=0)
    planned = weight_bytes(whole, Parallel(), options)
    assert sum(state.nbytes for name, state in states.items() if not name.endswith(".step")) == planned.optimizer
    assert sum(state.nbytes for name, state in states.items() if name.endswith(".step")) == planned.host


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_states_that_are_made_before_a_step_change_no_step(kind):
    found, expected = (archc.build(HYBRID, device="cpu", seed=0) for _ in range(2))
    ours, plain = (make_optimizer(model, replace(OPTIONS, optimizer=kind)) for model in (found, expected))
    ensure_state(ours)
    for step in range(2):
        for model, optimizer in ((found, ours), (expected, plain)):
            give_gradients(model, step)
            optimizer.step()
    torchs = named_states(plain)
    for name, state in named_states(ours).items():
        other = torchs[name]
        assert (state.shape, state.dtype, state.device) == (other.shape, other.dtype, other.device), name
        assert torch.equal(state, other), name
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))


def test_states_are_named_after_their_weights():
    model = archc.build(HYBRID, device="cpu", seed=0)
    optimizer = make_optimizer(model, replace(OPTIONS, optimizer="muon"))
    names = state_names(optimizer)
    assert names["embed_tokens.weight"] == ("step", "exp_avg", "exp_avg_sq")
    assert names["layers.0.ffn.experts.up_proj"] == ("momentum_buffer",)
    states = named_states(optimizer)
    assert set(states) == {f"{name}.{state}" for name, kept in names.items() for state in kept}
    states["embed_tokens.weight.exp_avg"].fill_(2.0)
    assert optimizer.state[model.get_parameter("embed_tokens.weight")]["exp_avg"].eq(2.0).all()


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_every_optimizer_lowers_the_loss_of_one_batch(kind):
    model = archc.build(HYBRID, device="cpu", seed=0)
    lr = {"sgd": 0.3}.get(kind, 0.01)
    optimizer = make_optimizer(model, replace(OPTIONS, optimizer=kind, lr=lr, weight_decay=0.0))
    ids = ids_for(model, 2, 17)
    losses = []
    for _ in range(25):
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert all(weight.grad is None for weight in model.parameters())
    assert losses[-1] < 0.6 * losses[0], losses


def test_ranks_move_cut_weights_as_one_process_does():
    lines = run_ranks(Path(__file__).with_name("optimizer_worker.py"), 4)[0].splitlines()
    assert len(lines) == 9
    # Where gradients are the same, Muon's weights are too, to the last bit.
    assert all("weights 0.0e+00, states 0.0e+00" in line for line in lines if " muon:" in line)
