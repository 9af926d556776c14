"""What each rank holds: counted against published double counting, torch's own cuts, and the whole model."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from archc.errors import SpecError
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.ir.op import Op, op
from archc.ir.values import TensorType
from archc.planning.parallel import Parallel, legal_splits
from archc.planning.sharding import ShardedParam, Sharding, shard
from archc.planning.stages import layers_of_stages
from archc.spec.load import load_spec, shipped_specs

WORKER = Path(__file__).with_name("tensor_parallel_worker.py")


def graph_of(name: str) -> Graph:
    return expand(load_spec(name))


def cut(name: str, **ranks: int) -> Sharding:
    return shard(graph_of(name), Parallel(**ranks))


def elements(sharding: Sharding, *, stage: int = 0) -> int:
    return sum(each.elements * each.count for each in sharding.stages[stage].params if each.param.trainable)


def by_name(sharding: Sharding) -> dict[str, ShardedParam]:
    return {name: each for stage in sharding.stages for each in stage.params for name in each.names}


@pytest.mark.parametrize("name", shipped_specs())
def test_one_rank_holds_every_weight_and_state_whole(name: str):
    graph = graph_of(name)
    sharding = shard(graph, Parallel()).check()
    (stage,) = sharding.stages
    found = {full: each.shape for each in stage.params for full in each.names}
    assert found == {full: param.shape for full, param in graph.params().items()}
    assert sum(each.count for each in stage.states) == len(graph.states())
    assert all(each.local.used == each.state.used and each.copies == 1 for each in stage.states)
    assert not sharding.notes


ODD_HEADS = {"bahdanau-2015": "1 head", "falcon-7b": "71 heads", "gpt2-xl": "25 heads", "smollm2-135m": "9 heads"}


@pytest.mark.parametrize("name", ODD_HEADS)
def test_an_odd_number_of_heads_can_not_be_halved(name: str):
    first = cut(name, tp=2).problems[0]
    assert first.startswith(f"{ODD_HEADS[name]} of ")
    assert first.endswith("can't be cut into 2 (tp)")


@pytest.mark.parametrize("name", [name for name in shipped_specs() if name not in ODD_HEADS])
def test_pieces_make_up_what_is_cut_and_the_rest_is_whole(name: str):
    sharding = cut(name, tp=2).check()
    for each in sharding.stages[0].params:
        for dim, size in enumerate(each.param.shape):
            _, ways = each.cuts.get(dim, ("", 1))
            if each.param.axes[dim] == "vocab":
                assert each.shape[dim] == math.ceil(size / 64) * 64 // ways
            else:
                assert each.shape[dim] * ways == size, each.names[0]
        assert each.copies == (1 if each.cuts else 2)
        assert bool(each.why) is not bool(each.cuts)


def test_both_ranks_of_gpt_neox_together_have_the_published_double_counting():
    """A README of GPT-NeoX-20B prints 20,556,201,984 parameters, the model card 20,554,567,680.

    The 1,634,304 more are 266 vectors of 6,144: norms and row-parallel biases, which both ranks hold.
    """
    whole, half = cut("gpt-neox-20b"), cut("gpt-neox-20b", tp=2).check()
    assert elements(whole) == 20_554_567_680
    assert 2 * elements(half) == 20_556_201_984
    twice = [each for each in half.stages[0].params if each.copies == 2]
    assert sum(each.elements * each.count for each in twice) == 266 * 6144
    biases = {each.why for each in twice if each.role == "bias" and not each.node.op.op_name.endswith("_norm")}
    assert biases == {"added once, behind the sum over ranks"}


def test_key_value_heads_fewer_than_ranks_are_held_several_times():
    sharding = cut("llama-3-8b", tp=16).check()
    found = by_name(sharding)
    assert found["layers.0.mixer.q_proj.weight"].shape == (256, 4096)
    key = found["layers.0.mixer.k_proj.weight"]
    assert (key.shape, key.copies, key.why) == ((128, 4096), 2, "8 kv_heads on 16 ranks")
    state = sharding.stages[0].states[0]
    assert (state.local.used[1], state.copies, state.why) == (1, 2, "8 kv_heads on 16 ranks")
    assert sharding.notes == ["8 kv_heads of attn on tp 16: each is held by 2 ranks"]


def test_latents_routers_and_norms_stand_on_every_rank_and_experts_go_by_ep():
    sharding = cut("deepseek-v3", tp=8, ep=8).check()
    found = by_name(sharding)
    for name in ("mixer.kv_a_proj_with_mqa.weight", "mixer.q_a_proj.weight", "ffn.router.weight", "ffn_norm.weight"):
        each = found[f"layers.3.{name}"]
        assert (each.copies, each.shape, each.why) == (8, each.param.shape, "no axis along which it could be cut")
    assert found["layers.3.mixer.attention.kv_b_proj.weight"].shape == (128 // 8 * 256, 512)
    experts = found["layers.3.ffn.experts.up_proj"]
    assert (experts.shape, experts.copies, experts.is_expert) == ((32, 2048, 7168), 1, True)
    (latent,) = {(each.copies, each.why) for each in sharding.stages[0].states}
    assert latent == (8, "all heads read it")


def test_without_ep_the_channels_of_experts_are_cut():
    experts = by_name(cut("deepseek-v3", tp=8).check())["layers.3.ffn.experts.up_proj"]
    assert (experts.shape, experts.cuts) == ((256, 256, 7168), {1: ("tp", 8)})


def test_experts_of_several_copies_are_shared_by_ep_and_the_rest_is_not():
    sharding = cut("deepseek-v3", dp=4, tp=2, ep=8).check()
    found = by_name(sharding)
    assert found["layers.3.ffn.experts.up_proj"].shape == (32, 2048, 7168)
    assert found["layers.3.ffn.shared_experts.up_proj.weight"].shape == (1024, 7168)
    fewer = by_name(cut("deepseek-v3", dp=4, tp=2, ep=4).check())["layers.3.ffn.experts.up_proj"]
    assert (fewer.shape, fewer.copies) == ((64, 2048, 7168), 2)


def test_experts_that_more_ranks_than_ep_hold_and_an_ep_without_experts_are_said():
    experts = by_name(cut("deepseek-v3", tp=8, ep=4).check())["layers.3.ffn.experts.up_proj"]
    assert (experts.shape, experts.copies, experts.why) == ((64, 2048, 7168), 2, "experts go to 4 of 8 ranks")
    assert cut("llama-3-8b", tp=2, ep=2).check().notes == ["ep 2 shares nothing: there are no experts"]
    assert cut("llama-3-8b", cp=2).check().notes == ["the 2 ranks of cp hold the same weights"]


def test_states_of_linear_mixers_are_cut_with_their_heads():
    sharding = cut("kimi-linear-48b-a3b", tp=4).check()
    used = {each.state.name: each.local.used for each in sharding.stages[0].states}
    assert used["delta_rule.recurrent_state"][1:] == (8, 128, 128)
    assert used["conv.conv_state"][1:] == (3, 3 * 1024)


def test_groups_of_mamba_2_fewer_than_ranks_are_held_by_each_beside_its_own_heads():
    """vLLM's ``extra_groups_for_head_shards``: one group, 80 heads of 64, on two ranks: 40 heads, and B and C whole."""
    graph = graph_of("mamba2-2.7b")
    sharding = shard(graph, Parallel(tp=2)).check()
    used = {each.state.name.rpartition(".")[2]: each.local.used for each in sharding.stages[0].states}
    assert used["recurrent_state"][1:] == (40, 128, 64)
    assert used["conv_state"][1:] == (3, 40 * 64 + 2 * 128)


def test_a_product_of_slices_is_cut_at_whole_slices():
    """DeepSeek-V4's own inference code: a column-parallel ``wo_a`` of ``o_groups / ranks`` groups, a row-parallel ``wo_b``."""
    found = by_name(cut("deepseek-v4-flash", tp=8).check())
    assert found["layers.3.mixer.o_a_proj.weight"].shape == (8 * 1024 // 8, 64 * 512 // 8)
    assert found["layers.3.mixer.o_b_proj.weight"].shape == (4096, 8 * 1024 // 8)
    problems = cut("deepseek-v4-flash", tp=16).problems
    assert problems[-1] == "8 and 64 heads of hca (layers.3 and 19 others) can't be cut into 16 (tp)"


def test_heads_stay_whole_and_every_reason_against_a_split_is_given():
    problems = cut("deepseek-v3", tp=5, ep=5).problems
    assert problems == [
        "128 heads of mla (layers.0 and 2 others) can't be cut into 5 (tp)",
        "18,432 feed-forward channels of dense (layers.0 and 2 others) can't be cut into 5 (tp)",
        "256 experts of moe (layers.3 and 57 others) can't be cut into 5 (ep)",
        "2,048 feed-forward channels of moe (layers.3 and 57 others) can't be cut into 5 (tp)",
    ]
    # 4096 channels could be cut into 64, heads of 128 can't.
    assert cut("llama-3-8b", tp=64).problems == ["32 heads of attn (layers.0 and 31 others) can't be cut into 64 (tp)"]
    # 16 heads of keys serve 32 of values: a split must leave both whole.
    assert cut("qwen3.5-9b", tp=32).problems[0].startswith("16 and 32 heads of gdn ")
    with pytest.raises(SpecError) as raised:
        cut("deepseek-v3", tp=5, ep=5).check()
    assert [problem.message for problem in raised.value.problems] == problems


@pytest.mark.parametrize(
    ("kv_heads", "tp", "is_legal"), [(8, 4, True), (8, 16, True), (8, 12, False), (6, 4, False), (6, 12, True)]
)
def test_key_value_heads_and_ranks_must_divide_one_another(kv_heads: int, tp: int, is_legal: bool):
    sets = (f"mixers.attn.num_kv_heads={kv_heads}", "mixers.attn.num_heads=48", "ffns.mlp.intermediate_size=13440")
    problems = shard(expand(load_spec("llama-3-8b", sets)), Parallel(tp=tp)).problems
    assert (
        not problems
        if is_legal
        else problems == [f"{kv_heads} kv_heads of attn (layers.0 and 31 others) can't be cut into {tp} (tp)"]
    )


def test_ranks_that_can_t_be_are_all_named():
    assert Parallel(tp=0, pp=-1).problems() == [
        "tp should be at least 1 (found 0)",
        "pp should be at least 1 (found -1)",
    ]
    (line,) = Parallel(tp=2, ep=3).problems()
    assert line.startswith("ep 3 doesn't divide the 2 ranks of a stage (tp 2 x dp 1 x cp 1)")
    assert [str(split) for split in legal_splits(4)] == ["tp 4", "tp 2, pp 2", "pp 4"]
    assert Parallel(tp=2, pp=3, dp=5, cp=7, ep=2).ranks == 210


def test_an_op_of_anyone_says_what_stays_whole_by_its_fields_or_by_a_method():
    @op
    class Grouped(Op):
        num_heads: int
        num_kv_heads: int

    @op
    class Blocks(Op):
        blocks: int

        def units(self, inputs: Sequence[TensorType]) -> dict[str, int]:
            return {"ffn": self.blocks}

    assert Grouped(num_heads=12, num_kv_heads=3).units(()) == {"heads": 12, "kv_heads": 3}
    assert Blocks(blocks=6).units(()) == {"ffn": 6}
    assert not Op().units(())


@pytest.mark.parametrize(
    ("layers", "pp", "counts"),
    [(27, 4, [7, 7, 7, 6]), (27, 5, [5, 5, 6, 6, 5]), (32, 4, [8] * 4), (5, 3, [2, 2, 1]), (3, 3, [1, 1, 1])],
)
def test_layers_that_are_left_over_spare_the_last_stage(layers: int, pp: int, counts: list[int]):
    """vLLM's ``get_pp_indices``: they go to the stages before the last, from the back."""
    assert layers_of_stages(layers, pp) == counts


def test_stages_hold_the_model_once_and_say_that_they_are_uneven():
    whole, staged = cut("kimi-linear-48b-a3b"), cut("kimi-linear-48b-a3b", pp=4).check()
    assert sum(elements(staged, stage=index) for index in range(4)) == elements(whole)
    assert staged.notes == ["27 layers on pp 4 are uneven: 7, 7, 7, 6"]
    assert [stage.layers[0] for stage in staged.stages] == ["layers.0", "layers.7", "layers.14", "layers.21"]
    names = [{name for each in stage.params for name in each.names} for stage in staged.stages]
    assert "embed_tokens.weight" in names[0]
    assert {"norm.weight", "lm_head.weight"} <= names[3]
    assert not names[1] & names[2]


def test_a_tied_table_stands_on_the_first_and_the_last_stage():
    whole, staged = cut("qwen3-0.6b"), cut("qwen3-0.6b", pp=2).check()
    table = 151_936 * 1024
    assert elements(staged) + elements(staged, stage=1) == elements(whole) + table


def test_what_all_layers_read_stands_on_every_stage():
    staged = cut("t5-base", pp=4).check()
    for stage in staged.stages:
        names = {name for each in stage.params for name in each.names}
        side = stage.layers[0].partition(".")[0]
        assert any("bias" in name and name.startswith(side) for name in names), names


def test_rows_that_another_stage_keeps_can_t_be_read():
    problems = cut("demo-yoco", pp=4).problems
    assert problems == ["layers.12 and 11 others read rows that layers.11 keeps on another stage (pp)"]
    # The first half is 11 windowed layers and the one that keeps: it ends where the second of two stages begins.
    assert cut("demo-yoco", pp=2).problems
    assert not cut("demo-yoco", pp=1).problems


def test_more_stages_than_layers_are_refused():
    assert cut("tiny-llama", pp=1000).problems[0].endswith("layers can't be cut into 1000 stages (pp)")


def test_a_vocabulary_is_padded_as_vllm_does_or_cut_as_torch_chunks():
    graph = expand(load_spec("llama-3-8b", ("tokenizer.vocab_size=32001",)))
    padded = by_name(shard(graph, Parallel(tp=4)).check())["lm_head.weight"]
    assert padded.shape == (32_064 // 4, 4096)
    chunked = by_name(shard(graph, Parallel(tp=4), vocab_multiple=1).check())["lm_head.weight"]
    (note,) = cut("t5-base", tp=3).check().notes
    assert note == "embed_tokens: 32,128 rows of the vocabulary are cut into 3 unevenly, which vLLM refuses"
    torch = pytest.importorskip("torch")
    assert chunked.shape[0] == len(torch.arange(32_001).chunk(4)[0])


def test_cp_cuts_the_tokens_of_what_grows_and_nothing_else():
    sharding = cut("kimi-linear-48b-a3b", cp=4).check()
    latent = next(each for each in sharding.stages[0].states if each.state.growth == "append")
    assert str(latent.local.used[2]) == "ceil((past + seq)/4)"
    assert elements(sharding) == elements(cut("kimi-linear-48b-a3b"))
    assert sum("every one of 4 cp ranks keeps it whole" in note for note in sharding.notes) == 2


@pytest.mark.torch
def test_real_tensors_cut_by_torch_over_two_processes_have_these_shapes(tmp_path: Path):
    pytest.importorskip("torch")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), "2", str(tmp_path / "meet")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        assert output.count("equal:") == 3, output
