"""Blocks by vLLM's rules, checked against lines that vLLM's users published and against its own example layouts."""

from __future__ import annotations

from fractions import Fraction

import pytest

from archc.estimation.cache import CacheOptions
from archc.ir.op import Op
from archc.ir.size import BATCH, CAPACITY, TOTAL
from archc.ir.values import Node, State
from archc.planning.parallel import Parallel
from archc.planning.serving.estimate import estimate_serving
from archc.planning.serving.paged import LayerCache, Pages, align_hybrid_block_size, group_size, plan_pages
from archc.planning.serving.rank_cache import layer_caches
from archc.planning.sharding import ShardedState, Stage
from archc.spec.load import load_spec, loads_spec

GIB = 1 << 30


def pages_of(name: str, *overrides: str, tp: int = 1, block_size: int | None = None, **options: object) -> Pages:
    spec = load_spec(name, overrides)
    return estimate_serving(spec, parallel=Parallel(tp=tp), block_size=block_size, **options).pages  # pyright: ignore[reportArgumentType]


def layer(kind: str, **values: object) -> LayerCache:
    return LayerCache(kind=kind, **values)  # pyright: ignore[reportArgumentType]


def full(token_bytes: int) -> LayerCache:
    return layer("full", type="full", token_bytes=Fraction(token_bytes))


def sliding(token_bytes: int, window: int) -> LayerCache:
    return layer("sliding", type="sliding", token_bytes=Fraction(token_bytes), window=window)


def state(state_bytes: int) -> LayerCache:
    return layer("state", type="state", state_bytes=state_bytes)


def test_kimi_linear_on_two_cards_gives_every_number_of_the_published_log():
    """vllm-project/vllm#28228: blocks of 960 tokens, padded by 1.89%, one layer of padding (5.00%), 75,840 tokens, 2.48x."""
    pages = pages_of("kimi-linear-48b-a3b", tp=2, block_size=64)
    assert {group.block_tokens for group in pages.groups} == {960}
    kda = next(group for group in pages.groups if group.type == "state")
    assert (kda.own_bytes, kda.page_bytes) == (1_085_440, 960 * 1152)
    assert round(100 * (kda.page_bytes / kda.own_bytes - 1), 2) == 1.89
    assert sorted(sum(group.layers) for group in pages.groups) == [6, 7, 7, 7]
    assert 1 / 20 == 0.05, "one place of padding for 20 layers"
    # "Available KV cache memory: 2.30 GiB" is any number of bytes that is printed so.
    blocks = {int(gib * GIB) // pages.block_bytes[0] for gib in (2.2951, 2.2975, 2.2998)}
    assert blocks == {318}
    assert 318 // len(pages.groups) * 960 == 75_840
    assert pages.request_blocks(120_000) == 125 + 3
    assert f"{318 / pages.request_blocks(120_000):.2f}" == "2.48"


@pytest.mark.parametrize(
    ("name", "overrides", "tp", "block_tokens", "padding"),
    [
        # vllm-project/vllm#37467, a comment on Qwen3.5: 528 tokens, 0.76%.
        ("qwen3.5-9b", (), 1, 528, 0.76),
        ("qwen3.5-9b", (), 2, 528, 0.76),
        # MetaX-MACA/vLLM-metax#230: 1056 tokens.
        ("qwen3.5-35b-a3b", (), 1, 1056, 0.76),
        ("qwen3.5-35b-a3b", (), 2, 1056, 0.76),
    ],
)
def test_published_block_sizes_of_gated_deltanet_models(
    name: str, overrides: tuple[str, ...], tp: int, block_tokens: int, padding: float
):
    pages = pages_of(name, *overrides, tp=tp)
    assert {group.block_tokens for group in pages.groups} == {block_tokens}
    deltanet = next(group for group in pages.groups if group.type == "state")
    assert round(100 * (deltanet.page_bytes / deltanet.own_bytes - 1), 2) == padding


QWEN_3_5_27B = ("stack.num_layers=64", "mixers.gdn.num_value_heads=48")
"""64 layers, every fourth of full attention, 48 heads of values; widths that no cache depends on are left as they are."""


def test_qwen_3_5_27b_has_the_published_blocks_tokens_and_concurrency():
    """1CatAI/1Cat-vLLM#237: 784 tokens, padded by 0.13%; vllm-project/vllm#40691: 290,864 tokens, 33.04x of 32,768.

    mitchross/talos-argocd-proxmox#1995: with a cache in 8 bits 1,568 tokens, 168 blocks for 262,144.
    """
    pages = pages_of("qwen3.5-9b", *QWEN_3_5_27B)
    assert {group.block_tokens for group in pages.groups} == {784}
    deltanet = next(group for group in pages.groups if group.type == "state")
    assert round(100 * (deltanet.page_bytes / deltanet.own_bytes - 1), 2) == 0.13
    assert [sum(group.layers) for group in pages.groups] == [16] * 4
    possible = [blocks for blocks in range(4000) if blocks // len(pages.groups) * 784 == 290_864]
    assert "33.04" in {f"{blocks / pages.request_blocks(32_768):.2f}" for blocks in possible}
    # Columns of convolutions stay in 16 bits there: 48 states of 128 x 128 in float32, 3 columns of 10,240 channels.
    narrow = [state(48 * 128 * 128 * 4 + 3 * 10_240 * 2), full(2 * 4 * 256)]
    assert align_hybrid_block_size(narrow, 16) == 1568
    assert -(-262_144 // 1568) == 168


@pytest.mark.parametrize(
    ("name", "blocks", "printed_gib"),
    [
        # vllm-project/vllm#10517: Llama-3.1-8B, "GPU blocks: 1952" and 3.81 GiB, 1478 and 2.89 GiB.
        ("llama-3-8b", 1952, "3.81"),
        ("llama-3-8b", 1478, "2.89"),
        # vllm-project/vllm#33263: 175,856 tokens in 18.78 GiB; Qwen3-1.7B keeps as much as Qwen3-0.6B.
        ("qwen3-0.6b", 175_856 // 16, "18.78"),
    ],
)
def test_published_numbers_of_blocks_fill_the_published_memory(name: str, blocks: int, printed_gib: str):
    pages = pages_of(name)
    assert f"{blocks * pages.block_bytes[0] / GIB:.2f}" == printed_gib


def test_nemotron_nano_has_blocks_of_672_tokens():
    """vllm-project/vllm#24280. 128 heads of 80 x 128 and 3 columns of 12,288 channels, in bf16; 8 key-value heads of 128."""
    layers = [state(2 * (128 * 80 * 128 + 3 * (128 * 80 + 2 * 8 * 128))), full(2 * 8 * 128 * 2)]
    assert align_hybrid_block_size(layers, 16) == 672


def test_a_spec_of_ours_gets_blocks_of_7808_tokens_and_pays_for_them():
    """The rule behind vllm-project/vllm#54458: 132 heads of KDA are 8,954,880 B, the latents of 7,808 tokens 8,994,816 B."""
    override = "mixers.kda.num_heads=132"
    found = estimate_serving(
        load_spec("kimi-linear-48b-a3b", (override,)), block_size=64, gpu="h200", gpus=1, max_model_len=131_072
    )
    pages = found.pages
    assert {group.block_tokens for group in pages.groups} == {7808}
    kda = next(group for group in pages.groups if group.type == "state")
    assert (kda.own_bytes, kda.page_bytes) == (8_954_880, 8_994_816)
    assert pages.request_blocks(12) == len(pages.groups) == 4
    assert pages.batch_bytes(0, 1, 12) == 4 * 7 * 8_994_816 == pages.least_bytes(0)
    assert pages.request_blocks(7808) == 4
    assert pages.request_blocks(7809) == 5
    assert any("7,808 tokens, not 64" in note for note in found.notes)


def test_a_short_request_that_takes_much_of_the_pool_is_warned_of():
    def warned(**options: float) -> list[str]:
        found = estimate_serving(
            load_spec("kimi-linear-48b-a3b", ("mixers.kda.num_heads=132",)),
            parallel=Parallel(),
            gpu="h200",
            max_model_len=8192,
            block_size=64,
            memory_utilization=0.78,
            **options,  # pyright: ignore[reportArgumentType]
        )
        assert found.pool is not None
        assert found.pool.least_request_share == pytest.approx(4 / found.pool.blocks)
        return [line for line in found.warnings if "request of one token" in line]

    assert warned() == warned(warn_share=0.05)
    share = 0.0001
    (line,) = warned(warn_share=share)
    assert "4 blocks, 251,854,848 B on a rank" in line
    assert not warned(warn_share=1.0)


GEMMA_2 = """
spec_version: 1
name: gemma-2-9b
tokenizer: {kind: external, vocab_size: 256000}
embedding: {hidden_size: 3584, tie_word_embeddings: true, scale: sqrt(hidden_size)}
position: {kind: rope, theta: 10000.0}
norm: {kind: rms_norm, eps: 1e-6, weight_offset: 1.0}
max_position_embeddings: 8192
mixers:
  global: {kind: gqa, num_heads: 16, num_kv_heads: 8, head_dim: 256}
  local: {extends: global, sliding_window: 4096}
ffns:
  mlp: {kind: geglu, intermediate_size: 14336, activation: gelu_tanh}
stack: {num_layers: 42, block: sandwich, mixer: (local global)*, ffn: mlp}
"""

MINISTRAL = """
spec_version: 1
name: ministral-8b
tokenizer: {kind: external, vocab_size: 131072}
embedding: {hidden_size: 4096, tie_word_embeddings: false}
position: {kind: rope, theta: 100000000.0}
norm: {kind: rms_norm, eps: 1e-5}
max_position_embeddings: 131072
mixers:
  global: {kind: gqa, num_heads: 32, num_kv_heads: 8, head_dim: 128}
  local: {extends: global, sliding_window: 32768}
ffns:
  mlp: {kind: swiglu, intermediate_size: 12288}
stack: {num_layers: 36, block: pre_norm, mixer: (global local*3)*, ffn: mlp}
"""


@pytest.mark.parametrize(("text", "waste"), [(GEMMA_2, 0.25), (MINISTRAL, 0.5625)])
def test_layers_that_keep_every_token_waste_what_was_published_and_groups_give_it_back(text: str, waste: float):
    """vllm-project/vllm#11382: 25% of Gemma-2's cache and 56.25% of Ministral's."""
    (stage,) = estimate_serving(loads_spec(text)).stages
    assert stage.unmanaged_bytes is not None
    assert 1 - stage.used_bytes / stage.unmanaged_bytes == waste
    given_back = 1 - stage.paged_bytes / stage.unmanaged_bytes
    # A window may begin inside a block, which costs less than a block more in each of its groups.
    assert waste - 0.001 < given_back <= waste


@pytest.mark.parametrize(
    ("counts", "size"),
    [
        # The examples in vLLM's source: 10 full and 20 windowed; 12 windowed and 13 full; 20 full and 30 windowed.
        ((10, 20), 10),
        ((12, 13), 13),
        ((20, 30), 20),
        ((10, 52), 10),
        ((7, 20), 7),
    ],
)
def test_groups_are_as_large_as_the_rarest_type_unless_the_types_are_about_as_common(
    counts: tuple[int, ...], size: int
):
    assert group_size(counts) == size


def test_two_full_and_three_windowed_layers_make_groups_of_two_and_one_empty_place():
    """The example of ``_get_kv_cache_groups_uniform_page_size``: (full.0, full.1), (sw.0, sw.2), (sw.1, padding).

    Three is 1.5 times two, so groups are as large as the rarest type.
    """
    stage = [full(1024), full(1024), *[sliding(1024, 64)] * 3]
    pages = plan_pages([stage], block_tokens=16)
    assert [(group.type, group.layers) for group in pages.groups] == [
        ("full", (2,)),
        ("sliding", (2,)),
        ("sliding", (1,)),
    ]
    assert pages.block_bytes == (2 * 16 * 1024,)


def test_stages_of_a_pipeline_share_groups_in_turn():
    """Stage 0 has full.0, sw.0, sw.1 and stage 1 full.1, sw.2, sw.3: three groups with a layer on each stage."""
    stage = [full(1024), *[sliding(1024, 64)] * 2]
    pages = plan_pages([stage, stage], block_tokens=16)
    assert [group.layers for group in pages.groups] == [(1, 1)] * 3
    assert pages.block_bytes == (16 * 1024, 16 * 1024)


def test_smaller_pages_get_more_tokens_where_that_divides_and_padding_where_it_does_not():
    pages = plan_pages([[full(1024), sliding(256, 64)]], block_tokens=16)
    assert [(group.block_tokens, group.page_bytes) for group in pages.groups] == [(16, 16_384), (64, 16_384)]
    pages = plan_pages([[full(1024), sliding(384, 64)]], block_tokens=16)
    assert [(group.block_tokens, group.own_bytes) for group in pages.groups] == [(16, 16_384), (16, 6_144)]
    assert any("padded to 16,384 B" in note for note in pages.notes)


def test_layers_of_one_type_share_one_group_whatever_their_widths():
    pages = plan_pages([[full(1024), full(384), full(512)]], block_tokens=16)
    (group,) = pages.groups
    assert (group.layers, pages.block_bytes) == ((3,), (16 * 1920,))
    only_states = plan_pages([[state(1000)] * 4], block_tokens=16)
    assert (only_states.request_blocks(1), only_states.request_blocks(10**15), only_states.block_bytes) == (
        1,
        1,
        (4000,),
    )


@pytest.mark.parametrize("window", [1, 2, 16, 17, 33, 128])
@pytest.mark.parametrize("block", [1, 4, 16])
def test_a_window_holds_the_blocks_that_its_tokens_lie_in_and_no_others(window: int, block: int):
    pages = plan_pages([[sliding(64, window)]], block_tokens=block)
    (group,) = pages.groups
    most = 0
    for tokens in range(1, 4 * window + 3 * block):
        first = max(tokens - window, 0)
        lies_in = (tokens - 1) // block - first // block + 1
        most = max(most, lies_in)
        assert lies_in <= group.blocks(tokens)
    assert group.blocks(10**15) == most
    chunk = 8192
    assert group.admitted_blocks(10**15, chunk) == -(-(window - 1 + chunk) // block) + 1


def test_prefix_sharing_keeps_whole_blocks_once_and_one_more_state_a_sequence():
    plain = pages_of("kimi-linear-48b-a3b")
    shared = pages_of("kimi-linear-48b-a3b", prefix_caching=True, prefix_tokens=4000)
    block = plain.groups[0].block_tokens
    assert plain.request_blocks(8000) == 3 + -(-8000 // block)
    assert shared.request_blocks(8000) == 6 + -(-8000 // block)
    # A sequence that has crossed no boundary keeps one state.
    assert shared.request_blocks(block) == 4
    whole = 4000 // block
    assert whole > 0
    assert shared.batch_blocks(10, 8000, prefix_tokens=4000) == 10 * shared.request_blocks(8000) - 9 * whole
    assert shared.batch_blocks(10, 8000) == 10 * shared.request_blocks(8000)


def test_a_prompt_that_is_all_prefix_still_has_a_last_block_of_its_own():
    """vLLM's ``max_cache_hit_length`` is one token less than there are, since the last one gives the logits."""
    pages = pages_of("llama-3-8b", prefix_caching=True, prefix_tokens=1024)
    assert pages.batch_blocks(64, 1024, prefix_tokens=1024) == 63 + 64
    assert pages.batch_blocks(64, 1025, prefix_tokens=1024) == 64 + 64
    counts = [pages.batch_blocks(64, tokens, prefix_tokens=1024) for tokens in range(1, 1100)]
    assert counts == sorted(counts)


def test_a_mixer_of_attention_and_a_state_side_by_side_has_pages_of_both():
    """As vLLM lays out Falcon-H1, whose layers have both: a Mamba layer and an attention layer each."""
    rows = State("k", (BATCH, 2, TOTAL, 64), (BATCH, 2, CAPACITY, 64), growth="append", role="kv", token_dim=2)
    fixed = State("s", (BATCH, 4, 64, 64), (BATCH, 4, 64, 64), growth="fixed", role="recurrent", dtype="float32")
    tail = State("t", (BATCH, 3, 64), (BATCH, 3, 64), growth="fixed", role="convolution")

    def caches(*states: State) -> tuple[list[LayerCache], int]:
        node = Node(Op(), "mix", (), (), {}, {each.name: each for each in states})
        stage = Stage(0, ("layers.0",))
        stage.states = [
            ShardedState(each, each, node, each.name, "body", "mix", ("layers.0",), "mixer", 1, "") for each in states
        ]
        return layer_caches(stage, CacheOptions("bfloat16", None, 1, 100, 100, 16), 1)

    layers, beside = caches(rows, fixed, tail)
    assert [(each.type, each.token_bytes, each.state_bytes) for each in layers] == [
        ("full", 2 * 64 * 2, 0),
        ("state", 0, 4 * 64 * 64 * 4 + 3 * 64 * 2),
    ]
    assert beside == 0
    layers, beside = caches(rows, tail)
    assert ([each.type for each in layers], beside) == (["full"], 3 * 64 * 2)


def test_a_state_a_block_is_what_a_stated_mamba_block_size_asks_for():
    """vLLM's ``mamba_cache_mode`` "all": blocks are common multiples of both, and each block keeps a state."""
    pages = pages_of("kimi-linear-48b-a3b", prefix_caching=True, state_block_tokens=256)
    (block,) = {group.block_tokens for group in pages.groups}
    assert block == 2048
    assert 2048 * 1152 >= 2_170_880 > 1792 * 1152
    assert pages.request_blocks(8192) == 4 * 4


def test_cp_ranks_share_the_blocks_of_what_grows():
    four = estimate_serving("deepseek-v3", parallel=Parallel(cp=4), max_model_len=65_536)
    one = estimate_serving("deepseek-v3", max_model_len=65_536)
    assert four.pages.block_bytes == one.pages.block_bytes
    assert four.pages.request_blocks(65_536) * 4 == one.pages.request_blocks(65_536)
    assert four.stages[0].used_bytes * 4 == one.stages[0].used_bytes == four.stages[0].paged_bytes * 4


def test_layers_with_rows_of_several_kinds_are_packed_and_said_to_be():
    found = estimate_serving("deepseek-v4-flash", max_model_len=1 << 20)
    assert {group.type for group in found.pages.groups} == {"full", "sliding"}
    assert any("as vLLM packs DeepSeek-V4" in note for note in found.notes)
    (stage,) = found.stages
    assert stage.used_bytes <= stage.paged_bytes < 1.2 * stage.used_bytes
    assert found.pages.beside_bytes[0] > 0, "rows that wait for their entry"
