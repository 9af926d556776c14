import copy
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import archc
from archc.errors import ArchcError
from archc.planning.parallel import Parallel
from archc.torch_backend.leaves.moe import Route, Router
from archc.training.module import TrainingModel
from archc.training.options import TrainOptions
from archc.training.parallel.world import World
from archc.training.routers import forget, prepare, router_metrics, update_biases
from tests.torch_backend.examples import MIXERS, MOE, ids_for, lively, small_spec
from tests.training.ranks import run_ranks

ALONE = World(Parallel(), torch.device("cpu"))
OPTIONS = TrainOptions(steps=10, seq_len=12, batch_size=4)
ROUTER = "{scoring_func: sigmoid, norm_topk_prob: true, correction_bias: true, routed_scaling_factor: 2.5}"
SPEC = small_spec(MIXERS["gqa"], f"{{{MOE}, router: {ROUTER}}}", layers=2)
SOFTMAX = small_spec(MIXERS["gqa"], f"{{{MOE}, router: {{scoring_func: softmax, norm_topk_prob: false}}}}", layers=1)


def routers_of(model):
    return [module for module in model.modules() if isinstance(module, Router)]


def prepared(spec=SPEC, **asked):
    return prepare(lively(spec), replace(OPTIONS, **asked))


def passed(model, *, passes=1, rows=4, seed=0):
    """Loss of a step and gradients by name, in so many passes."""
    module, ids = TrainingModel(model), ids_for(model, rows, 13, seed)
    losses = []
    for part in ids.chunk(passes):
        loss = module({"input_ids": part[:, :-1]}, part[:, 1:], torch.tensor(1 / (rows * 12)))
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum(), {name: weight.grad for name, weight in model.named_parameters()}


def watched(model):
    """Inputs and chosen experts of each router, in order of execution."""
    seen = []
    for router in routers_of(model):
        router.register_forward_hook(lambda module, args, out: seen.append((module, args, out[0])))
    return seen


def losses_of(router, x, k=2):
    """The balance loss of each sequence, and the mean of the squared log-sum-exp, spelled out."""
    logits = x.double() @ router.weight.double().T
    scores = logits.sigmoid() if router.scoring_func == "sigmoid" else logits.softmax(-1)
    balance = []
    for row in scores:
        tokens, experts = row.shape
        chosen = row.topk(k)[1]
        total = 0.0
        for expert in range(experts):
            f = experts / (k * tokens) * (chosen == expert).sum().item()
            p = sum(row[t, expert] / row[t].sum() for t in range(tokens)) / tokens
            total = total + f * p
        balance.append(total)
    return torch.stack(balance), logits.exp().sum(-1).log().square().mean()


def extra_gradients(spec, asked, **how):
    """What the routers' losses add to the gradients of their weights, with the routers' inputs of that pass."""
    plain, with_losses = lively(spec), prepared(spec, **asked)
    seen = watched(with_losses)
    _, expected = passed(plain, **how)
    _, found = passed(with_losses, **how)
    return {name: found[name] - expected[name] for name in found}, seen, with_losses


@pytest.mark.parametrize(
    "asked", [{"balance_loss": 0.5}, {"router_z_loss": 0.5}, {"balance_loss": 0.3, "router_z_loss": 0.2}]
)
@pytest.mark.parametrize("spec", [SPEC, SOFTMAX], ids=["sigmoid", "softmax"])
def test_losses_of_sequences_have_the_gradients_of_the_formulas(spec, asked):
    with_losses = prepared(spec, **asked)
    last = routers_of(with_losses)[-1]
    seen = watched(with_losses)
    _, found = passed(with_losses)
    _, expected = passed(lively(spec))
    # Of the last router alone: an earlier one's weight moves what the later ones read.
    x = next(args[0] for module, args, _ in seen if module is last)
    weight = last.weight.detach().double().requires_grad_()
    router = copy.copy(last)
    router._parameters = {**last._parameters, "weight": weight}
    balance, z = losses_of(router, x.detach())
    (asked.get("balance_loss", 0.0) * balance.mean() + asked.get("router_z_loss", 0.0) * z).backward()
    name = next(name for name, module in with_losses.named_modules() if module is last) + ".weight"
    extra = (found[name] - expected[name]).double()
    assert (extra - weight.grad).norm() < 2e-5 * weight.grad.norm()


def test_losses_reach_what_stands_before_the_router():
    extra, _, _ = extra_gradients(SOFTMAX, {"balance_loss": 0.5, "router_z_loss": 0.5})
    assert extra["embed_tokens.weight"].norm() > 1e-4
    assert extra["layers.0.mixer.o_proj.weight"].norm() > 1e-4
    assert extra["lm_head.weight"].abs().max() == 0


def test_the_loss_over_a_batch_is_that_of_all_sequences_as_one():
    asked = {"balance_loss": 0.5, "balance_over": "batch"}
    extra, seen, model = extra_gradients(SOFTMAX, asked)
    router, args, _ = seen[0]
    weight = router.weight.detach().double().requires_grad_()
    twin = copy.copy(router)
    twin._parameters = {**router._parameters, "weight": weight}
    balance, _ = losses_of(twin, args[0].detach().flatten(0, 1).unsqueeze(0))
    (0.5 * balance.sum()).backward()
    assert (extra["layers.0.ffn.router.weight"].double() - weight.grad).norm() < 2e-5 * weight.grad.norm()
    update_biases(model, OPTIONS, ALONE)
    assert router_metrics(model, ALONE)["router_balance_loss"] == pytest.approx(balance.item(), rel=1e-6)


def test_metrics_tell_the_losses_before_their_factors_summed_over_routers():
    model = prepared(balance_loss=0.01, router_z_loss=0.001)
    seen = watched(model)
    passed(model)
    update_biases(model, OPTIONS, ALONE)
    balances, zs = zip(*(losses_of(router, args[0]) for router, args, _ in seen), strict=True)
    metrics = router_metrics(model, ALONE)
    assert metrics["router_balance_loss"] == pytest.approx(sum(b.mean().item() for b in balances), rel=1e-6)
    assert metrics["router_z_loss"] == pytest.approx(sum(z.item() for z in zs), rel=1e-6)


def test_even_loads_and_scores_have_a_balance_loss_of_one():
    model = prepared(SOFTMAX, balance_loss=1.0)
    with torch.no_grad():
        routers_of(model)[0].weight.zero_()
    passed(model)
    update_biases(model, OPTIONS, ALONE)
    assert router_metrics(model, ALONE)["router_balance_loss"] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_recomputation_changes_no_bit_of_losses_gradients_or_counts(mode):
    asked = {"balance_loss": 0.1, "router_z_loss": 0.01}
    plain, again = prepared(**asked), archc.recompute(prepared(**asked), mode)
    expected_loss, expected = passed(plain, passes=2)
    loss, found = passed(again, passes=2)
    assert torch.equal(loss, expected_loss)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    for one, other in zip(routers_of(plain), routers_of(again), strict=True):
        assert torch.equal(one.loads.grad, other.loads.grad)
        assert torch.equal(one.losses.grad, other.losses.grad)


@pytest.mark.parametrize("passes", [2, 4])
def test_micro_batches_have_the_gradients_and_counts_of_one_pass(passes):
    asked = {"balance_loss": 0.5, "router_z_loss": 0.1}
    whole, parts = prepared(**asked), prepared(**asked)
    _, expected = passed(whole)
    _, found = passed(parts, passes=passes)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() < 2e-6 * gradient.norm(), name
    for one, other in zip(routers_of(whole), routers_of(parts), strict=True):
        assert torch.equal(one.loads.grad, other.loads.grad)
        torch.testing.assert_close(one.losses.grad, other.losses.grad, rtol=1e-6, atol=0)


def test_compiled_layers_count_and_lose_alike_in_one_graph():
    asked = {"balance_loss": 0.1, "router_z_loss": 0.01}
    plain, compiled = prepared(**asked), prepared(**asked)
    for layer in compiled.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    _, expected = passed(plain, passes=2)
    _, found = passed(compiled, passes=2)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)
    for one, other in zip(routers_of(plain), routers_of(compiled), strict=True):
        assert torch.equal(one.loads.grad, other.loads.grad)
        torch.testing.assert_close(one.losses.grad, other.losses.grad, rtol=1e-6, atol=0)


def saved_bytes(model):
    """Bytes of distinct storages that backward keeps."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    ids = ids_for(model, 2, 12)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model(ids)
    assert out.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


def test_counting_alone_changes_no_value_no_gradient_no_name_and_keeps_no_byte():
    plain, counting = lively(SPEC), prepared()
    assert list(plain.state_dict()) == list(counting.state_dict())
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in counting.named_parameters()]
    assert saved_bytes(plain) == saved_bytes(counting)
    expected_loss, expected = passed(plain)
    loss, found = passed(counting)
    assert torch.equal(loss, expected_loss)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_loads_are_the_tokens_of_each_expert():
    model = prepared()
    seen = watched(model)
    passed(model, passes=2)
    for router in routers_of(model):
        chosen = torch.cat([indices.flatten() for module, _, indices in seen if module is router])
        assert torch.equal(router.loads.grad, torch.bincount(chosen, minlength=8).float())


def test_nothing_is_counted_where_nothing_is_learned():
    model = prepared(balance_loss=0.1)
    ids = ids_for(model, 2, 12)
    with torch.no_grad():
        model(ids)
    model.eval()
    model(ids).sum().backward()
    assert all(router.loads.grad is None and router.losses.grad is None for router in routers_of(model))


def test_biases_move_towards_even_loads_by_the_rate():
    model = prepared()
    before = [router.e_score_correction_bias.clone() for router in routers_of(model)]
    passed(model)
    loads = [router.loads.grad.clone() for router in routers_of(model)]
    update_biases(model, replace(OPTIONS, router_bias_rate=0.25), ALONE)
    for router, old, load in zip(routers_of(model), before, loads, strict=True):
        by_hand = [
            bias + 0.25 * ((load.mean() > each).float() - (load.mean() < each).float())
            for bias, each in zip(old, load, strict=True)
        ]
        assert torch.equal(router.e_score_correction_bias, torch.stack(by_hand))
        assert router.loads.grad is None


def test_a_rate_of_zero_and_a_step_that_is_not_taken_move_nothing():
    model = prepared()
    before = [router.e_score_correction_bias.clone() for router in routers_of(model)]
    passed(model)
    update_biases(model, replace(OPTIONS, router_bias_rate=0.0), ALONE)
    passed(model)
    forget(model)
    update_biases(model, OPTIONS, ALONE)
    for router, old in zip(routers_of(model), before, strict=True):
        assert torch.equal(router.e_score_correction_bias, old)


def skewed():
    """A router that sends every token to the same two experts."""
    model = prepared(small_spec(MIXERS["gqa"], f"{{{MOE}, router: {ROUTER}}}", layers=1), balance_loss=0.0)
    router = routers_of(model)[0]
    inputs = []
    handle = router.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))
    passed(model)
    handle.remove()
    with torch.no_grad():
        router.e_score_correction_bias.zero_()
        router.weight.mul_(0.2)
        router.weight[:2] += 0.3 * torch.nn.functional.normalize(inputs[0].flatten(0, 1).mean(0), dim=0)
        router.weight[2:] -= 0.3 * torch.nn.functional.normalize(inputs[0].flatten(0, 1).mean(0), dim=0)
    forget(model)
    return model


def violation(model):
    """MaxVio of one batch after the step that it makes."""
    passed(model, rows=32)
    update_biases(model, replace(OPTIONS, router_bias_rate=0.01), ALONE)
    return router_metrics(model, ALONE)["router_max_violation"]


def test_uneven_loads_become_even_by_the_biases_alone():
    model = skewed()
    found = [violation(model) for _ in range(40)]
    assert found[0] > 1.2
    assert max(found[-10:]) < 0.15, found


def test_the_balance_loss_alone_makes_loads_even():
    model = prepare(lively(SOFTMAX), replace(OPTIONS, batch_size=32, balance_loss=1.0))
    router = routers_of(model)[0]
    router.weight.data.copy_(4 * routers_of(skewed())[0].weight)
    optimizer, found = torch.optim.SGD([router.weight], lr=1.0), []
    for _ in range(60):
        found.append(violation(model))
        optimizer.step()
        model.zero_grad()
    assert found[0] > 1.2
    assert max(found[-10:]) < 0.3, found


def test_experts_by_token_id_have_a_z_loss_and_no_balance_loss():
    spec = small_spec(
        MIXERS["gqa"],
        f"{{{MOE}, router: {{kind: token_table, scoring_func: sigmoid, norm_topk_prob: true}}}}",
        layers=1,
    )
    extra, _, model = extra_gradients(spec, {"balance_loss": 5.0})
    assert all(gradient.abs().max() == 0 for gradient in extra.values())
    assert routers_of(model)[0].loads.grad.sum() == 4 * 12 * 2
    extra, _, _ = extra_gradients(spec, {"router_z_loss": 0.5})
    assert extra["layers.0.ffn.router.weight"].norm() > 1e-3


def test_losses_of_routers_without_a_router_are_refused():
    with pytest.raises(ArchcError, match="balance_loss and router_z_loss: the model has no router"):
        prepare(archc.build("tiny-llama"), replace(OPTIONS, balance_loss=0.1, router_z_loss=0.1))


def test_a_model_without_routers_has_no_metrics_of_them():
    model = prepare(archc.build("tiny-llama", device="cpu", seed=0), OPTIONS)
    update_biases(model, OPTIONS, ALONE)
    assert router_metrics(model, ALONE) == {}


def test_a_model_that_leaves_the_meta_device_counts():
    model = prepare(archc.build(SPEC), OPTIONS)
    model.to_empty(device="cpu")
    archc.init(model, 0)
    passed(model)
    assert all(router.loads.grad.sum() == 4 * 12 * 2 for router in routers_of(model))


def test_a_copy_and_a_pickled_one_count_for_themselves():
    model = prepared()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        passed(other)
        assert all(isinstance(router, Route) and router.loads.grad.sum() == 4 * 12 * 2 for router in routers_of(other))
    assert all(router.loads.grad is None for router in routers_of(model))


def test_ranks_have_the_losses_biases_and_metrics_of_one_process():
    lines = run_ranks(Path(__file__).with_name("router_worker.py"), 2)[0].splitlines()
    assert len(lines) == 6
    assert all("biases True" in line for line in lines)
