"""What ``archc plan`` prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable

from click.testing import Result

from archc.planning.parallel import Parallel
from archc.planning.plan import plan

Invoke = Callable[..., Result]


def test_plan_says_what_is_cut_what_is_whole_and_what_is_sent(invoke: Invoke):
    result = invoke("plan", "llama-3-8b", "--tp", 8, "--dp", 2)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for line in (
        "llama-3-8b, planned: bfloat16, adamw, zero 3, on 16 ranks (tp 8, dp 2)",
        "master weights 1.870 GiB",
        "there all the time 7.480 GiB",
        "weights: attn + mlp, 32 layers",
        "weight whole a rank's at rest cut",
        "mixer.q_proj.weight 4096 x 4096 512 x 4096 256 x 4096 heads by tp 8",
        "ffn_norm.weight 4096 4096 2048 whole: no axis along which it could be cut, the same on 8 ranks",
        "attn + mlp, 32 layers mixer.o_proj sum over tp 8 (batch, seq, 4096) 8,192",
    ):
        assert line in lines, line
    assert "states:" not in result.stdout


def test_plan_shows_pieces_of_caches_where_they_are_asked_for(invoke: Invoke):
    shown = invoke("plan", "tiny-kimi-linear", "--tp", 2, "--pp", 2, "--states").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "states: kda + moe, 5 layers, stages 0-1" in lines
    assert "mixer.delta_rule.recurrent_state (batch, 2, 64, 64) (batch, 1, 64, 64) once" in lines
    latent = "(batch, 1, past + seq, 80)"
    assert f"mixer.attention.latent {latent} {latent} by 2 ranks, all heads read it" in lines


def test_plan_json_is_the_library_s(invoke: Invoke):
    result = invoke(
        *("plan", "tiny-kimi-linear", "--gpus", 8, "--tp", 2, "--pp", 2, "--zero", 2, "--optimizer", "muon"),
        *("--dtype", "bf16", "--grad-dtype", "fp32", "--no-master-weights", "--set", "stack.num_layers=4", "--json"),
    )
    assert (result.exit_code, result.stderr) == (0, "")
    from archc.spec.load import load_spec

    found = plan(
        load_spec("tiny-kimi-linear", ["stack.num_layers=4"]),
        Parallel(tp=2, pp=2, dp=2),
        zero=2,
        optimizer="muon",
        dtype="bfloat16",
        grad_dtype="float32",
        master_weights=False,
    )
    assert json.loads(result.stdout) == json.loads(json.dumps(found.to_json()))


def test_plan_bytes_are_those_of_estimate_train(invoke: Invoke):
    options = ["--tp", 4, "--pp", 2, "--dp", 2, "--zero", 3]
    planned = json.loads(invoke("plan", "kimi-linear-48b-a3b", *options, "--json").stdout)
    estimated = json.loads(
        invoke("estimate", "kimi-linear-48b-a3b", "--train", *options, "--max-model-len", "1k", "--json").stdout
    )["training"]
    names = ("parameter_bytes", "master_bytes", "gradient_bytes", "optimizer_bytes", "gathered_bytes", "buffer_bytes")
    for stage, expected in zip(planned["stages"], estimated["stages"], strict=True):
        assert {name: stage[name] for name in names} == {name: expected[name] for name in names}


def test_an_impossible_plan_ends_in_exit_code_2_with_every_reason(invoke: Invoke):
    result = invoke("plan", "tiny-kimi-linear", "--tp", 3, "--cp", 2)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "archc: 6 problems" in result.stderr
    assert "2 heads of kda (layers.0) can't be cut into 3 (tp)" in result.stderr
    assert "carries a recurrent state from token to token" in result.stderr
    assert invoke("plan", "tiny-llama", "--tp", 0).exit_code == 2
    assert invoke("plan", "no-such-spec").exit_code == 2


def test_a_plan_that_train_can_not_run_says_so(invoke: Invoke):
    result = invoke("plan", "llama-3-8b", "--tp", 16)
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    assert "archc train can't run this plan 8 kv_heads of attn on tp 16" in said
    data = json.loads(invoke("plan", "llama-3-8b", "--tp", 16, "--json").stdout)
    assert data["trainable"] is False


def test_stages_beyond_six_are_told_by_four(invoke: Invoke):
    shown = invoke("plan", "deepseek-v3", "--pp", 8, "--ep", 64, "--dp", 64).stdout
    assert "stages 0, 6, 7 of 8" in shown
    assert " ".join(shown.split()).count("each stage to the next") == 1
