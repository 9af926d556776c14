"""Every kind and every key keeps the contract: built as its graph says, the same however tokens come, twins and FLOPs agree."""

from __future__ import annotations

import pytest

from tests.plugins.specs import clamped, gqa, kda, mla, moe, swiglu, tiny

pytestmark = pytest.mark.torch

MIXERS = {
    "multi-head attention": gqa(kv_heads=4),
    "grouped-query attention": gqa(),
    "multi-query attention": gqa(kv_heads=1),
    "qkv_bias": gqa("qkv_bias: true"),
    "o_bias": gqa("o_bias: true"),
    "qk_norm head": gqa("qk_norm: head"),
    "qk_norm width": gqa("qk_norm: width"),
    "qk_norm unit": gqa("qk_norm: unit"),
    "a window shorter than every call": gqa("sliding_window: 3"),
    "a window of one token": gqa("sliding_window: 1"),
    "a window between the calls' lengths": gqa("sliding_window: 9"),
    "a window longer than the text": gqa("sliding_window: 50"),
    "short chunks": gqa("attention_chunk_size: 4"),
    "chunks that end inside a call": gqa("attention_chunk_size: 9"),
    "chunks longer than the text": gqa("attention_chunk_size: 50"),
    "softmax_scale as a number": gqa("softmax_scale: 0.2"),
    "softmax_scale as a fraction": gqa("softmax_scale: 1/7"),
    "softmax_scale over a root": gqa("softmax_scale: 1/sqrt(168)"),
    "softmax_scale over the root of a key": gqa("softmax_scale: 1/sqrt(num_heads)"),
    "softmax_scale over the root of the width": gqa("softmax_scale: 1/sqrt(hidden_size)"),
    "a scale by the layer's number": gqa("scale_attn_by_inverse_layer_idx: true"),
    "soft-capped scores": gqa("attn_logit_softcapping: 0.5"),
    "soft-capped scores in a window": gqa("attn_logit_softcapping: 0.5, sliding_window: 5"),
    "sinks": gqa("sink_logits: true"),
    "sinks in a window": gqa("sink_logits: true, sliding_window: 5"),
    "sinks in chunks": gqa("sink_logits: true, attention_chunk_size: 5"),
    "a gate on the output": gqa("output_gate: true"),
    "query_temperature": gqa("query_temperature: {scale: 0.5, floor: 4}"),
    "all of gqa": gqa(
        "qkv_bias: true, o_bias: true, qk_norm: head, sliding_window: 6, softmax_scale: 1/sqrt(head_dim), "
        "attn_logit_softcapping: 2.0, sink_logits: true, output_gate: true, query_temperature: {scale: 0.5, floor: 4}"
    ),
    "mla": mla(),
    "mla with compressed queries": mla("q_lora_rank: 10"),
    "mla with biases": mla("q_lora_rank: 10, bias: true"),
    "mla with biases and whole queries": mla("bias: true"),
    "mla with a gate": mla("output_gate: true"),
    "kda": kda(),
    "kda with a gate of full rank": kda("full_rank_gate: true"),
    "kda with a floor under its decay": kda("decay_floor: -5.0"),
    "kda with a kernel of 2": kda("conv_kernel: 2"),
    "kda with a kernel of 3": kda("conv_kernel: 3"),
    "kda with all": kda("conv_kernel: 3, full_rank_gate: true, decay_floor: -1.0"),
}

ROUTERS = {
    **{
        f"{function}, {'normalised' if normed == 'true' else 'as scored'}": f"scoring_func: {function}, norm_topk_prob: {normed}"
        for function in ("softmax", "sigmoid", "sqrtsoftplus")
        for normed in ("true", "false")
    },
    "correction_bias": "scoring_func: sigmoid, norm_topk_prob: true, correction_bias: true",
    "bias": "scoring_func: softmax, norm_topk_prob: true, bias: true",
    "routed_scaling_factor": "scoring_func: sigmoid, norm_topk_prob: true, routed_scaling_factor: 2.5",
    "groups by their best": "scoring_func: softmax, norm_topk_prob: false, n_group: 4, topk_group: 2, group_score: max",
    "groups by their best two": "scoring_func: sigmoid, norm_topk_prob: true, correction_bias: true, n_group: 4, topk_group: 2",
    "groups of one, by their best": "scoring_func: softmax, norm_topk_prob: true, n_group: 8, topk_group: 4, group_score: max",
    "all groups": "scoring_func: sigmoid, norm_topk_prob: true, n_group: 2, topk_group: 2",
    "weight_on input": "scoring_func: sigmoid, norm_topk_prob: false, weight_on: input",
}

SOFTMAX = "scoring_func: softmax, norm_topk_prob: true"
FFNS = {
    **{
        f"swiglu with {name}": swiglu(f"activation: {name}")
        for name in ("silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid")
    },
    "swiglu with biases": swiglu("bias: true"),
    "clamped_swiglu": clamped(),
    "clamped_swiglu with all": clamped("alpha: 1.702, up_offset: 1.0, bias: true"),
    **{f"moe, {name}": moe(router) for name, router in ROUTERS.items()},
    "moe with shared experts": moe(keys="num_shared_experts: 2"),
    "moe with a shared expert of another width": moe(keys="num_shared_experts: 1, shared_intermediate_size: 20"),
    "moe with a gate on the shared expert": moe(keys="num_shared_experts: 1, shared_gate: true"),
    "moe in a smaller space": moe(keys="latent_size: 10"),
    "moe in a smaller, normed space": moe(keys="latent_size: 10, latent_norm: true, num_shared_experts: 1"),
    "moe of clamped experts with biases": moe(
        keys="expert: {kind: clamped_swiglu, limit: 0.7, alpha: 1.702, up_offset: 1.0, bias: true}, num_shared_experts: 1"
    ),
    "moe of experts with gelu": moe(keys="expert: {activation: gelu}"),
    "moe of clamped experts weighed before": moe(
        f"{SOFTMAX}, weight_on: input", "expert: {kind: clamped_swiglu, limit: 0.7, bias: true}"
    ),
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_a_mixer_keeps_the_contract(contract, mixer):
    contract(tiny(mixer))


@pytest.mark.parametrize("ffn", FFNS.values(), ids=FFNS)
def test_a_feed_forward_keeps_the_contract(contract, ffn):
    contract(tiny(ffn=ffn))


LINEAR = "{kind: linear, factor: 4.0}"
LLAMA3 = (
    "{kind: llama3, factor: 8.0, original_max_position_embeddings: 16, low_freq_factor: 1.0, high_freq_factor: 4.0}"
)
YARN = "{kind: yarn, factor: 4.0, original_max_position_embeddings: 8%s}"
POSITIONS = {
    "none": "none",
    "rope": "{kind: rope, theta: 100.0}",
    "a part of the channels": "{kind: rope, theta: 100.0, partial_rotary_factor: 0.5}",
    "the last channels": "{kind: rope, theta: 100.0, partial_rotary_factor: 0.5, trailing: true}",
    "interleaved": "{kind: rope, theta: 100.0, interleaved: true}",
    "the last channels, interleaved": "{kind: rope, theta: 1e4, partial_rotary_factor: 0.5, trailing: true, interleaved: true}",
    "linear": f"{{kind: rope, theta: 100.0, scaling: {LINEAR}}}",
    "llama3": f"{{kind: rope, theta: 100.0, scaling: {LLAMA3}}}",
    "yarn": f"{{kind: rope, theta: 100.0, scaling: {YARN % ''}}}",
    "yarn between whole channels": f"{{kind: rope, theta: 100.0, scaling: {YARN % ', truncate: false'}}}",
    "yarn with its factor": f"{{kind: rope, theta: 100.0, scaling: {YARN % ', attention_factor: 0.7'}}}",
    "yarn with betas": f"{{kind: rope, theta: 100.0, scaling: {YARN % ', beta_fast: 4.0, beta_slow: 0.5'}}}",
    "yarn with mscale": f"{{kind: rope, theta: 100.0, scaling: {YARN % ', mscale: 0.7, mscale_all_dim: 1.3'}}}",
}


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_a_position_keeps_the_contract_under_grouped_attention(contract, position):
    contract(tiny(gqa(), position=position))


@pytest.mark.parametrize("position", ["none", "rope", "interleaved", "linear", "llama3", "yarn", "yarn with mscale"])
def test_a_position_keeps_the_contract_under_latent_attention(contract, position):
    contract(tiny(mla(), position=POSITIONS[position]))


BLOCKS = {
    "residual_multiplier": "block: {kind: pre_norm, residual_multiplier: 0.3}, mixer: mixer, ffn: ffn",
    "residual_multiplier over a root": "block: {kind: pre_norm, residual_multiplier: 1.4/sqrt(40)}, mixer: mixer, ffn: ffn",
    "skip_multiplier": "block: {kind: pre_norm, skip_multiplier: 0.5}, mixer: mixer, ffn: ffn",
    "no norm before the mixer": "block: {kind: pre_norm, mixer_norm: false}, mixer: mixer, ffn: ffn",
    "no final norm": "block: pre_norm, mixer: mixer, ffn: ffn, final_norm: false",
    "half-layers": "block: pre_norm, layers: mixer ffn ffn mixer+ffn mixer",
    "layers without an ffn": "block: pre_norm, mixer: mixer*5, ffn: none ffn none*3",
    "layers without a mixer": "block: pre_norm, mixer: mixer none*4, ffn: ffn*5",
    "a norm of the stack": "block: pre_norm, mixer: mixer, ffn: ffn, norm: {kind: rms_norm, eps: 0.1}",
    "a position of the stack": "block: pre_norm, mixer: mixer, ffn: ffn, position: none",
}


@pytest.mark.parametrize("keys", BLOCKS.values(), ids=BLOCKS)
def test_a_stack_keeps_the_contract(contract, keys):
    # Where patterns are longer than two layers, they are five.
    layers = 5 if "layers:" in keys or "none" in keys.replace("position: none", "") else 2
    contract(tiny(stack=f"{{num_layers: {layers}, {keys}}}"))


MODELS = {
    "a norm with an offset": {"norm": "{kind: rms_norm, eps: 1.0e-5, weight_offset: 1.0}"},
    "a head with biases": {"more": "head: {bias: true}"},
    "a scaled head": {"more": "head: {logit_scale: 1/sqrt(hidden_size)}"},
    "a soft-capped head": {"more": "head: {final_logit_softcapping: 0.3}"},
    "no head": {"more": "head: none"},
    "a tied head": {"embedding": "{hidden_size: 16, tie_word_embeddings: true}"},
    "a tied head with all": {
        "embedding": "{hidden_size: 16, tie_word_embeddings: true}",
        "more": "head: {bias: true, logit_scale: 0.5, final_logit_softcapping: 0.3}",
    },
    "a narrower table": {"embedding": "{hidden_size: 16, embedding_size: 10, tie_word_embeddings: false}"},
    "a narrower table, tied": {"embedding": "{hidden_size: 16, embedding_size: 10, tie_word_embeddings: true}"},
    "a scaled embedding": {"embedding": "{hidden_size: 16, tie_word_embeddings: true, scale: sqrt(hidden_size)}"},
    "more rows than ids": {"embedding": "{hidden_size: 16, tie_word_embeddings: false, num_embeddings: 48}"},
    "rows in multiples": {"embedding": "{hidden_size: 16, tie_word_embeddings: true, pad_vocab_to_multiple_of: 64}"},
    "a mixer's own norm": {"mixer": gqa("norm: {kind: rms_norm, eps: 0.1, weight_offset: 1.0}, qk_norm: head")},
    "a mixer's own position": {"mixer": gqa("position: {kind: rope, theta: 9.0, partial_rotary_factor: 0.5}")},
    "a mixer's own block": {"mixer": gqa("block: {kind: pre_norm, skip_multiplier: 0.5, mixer_norm: false}")},
    "a mixer's own cache": {"mixer": kda("cache: {policy: full, dtype: float32, state_dtype: float32}")},
    "a mixer's own cache over another": {"mixer": gqa("cache: {dtype: float32}"), "more": "cache: {dtype: float16}"},
}


@pytest.mark.parametrize("parts", MODELS.values(), ids=MODELS)
def test_what_surrounds_the_layers_keeps_the_contract(contract, parts):
    contract(tiny(**parts))


@pytest.mark.parametrize("mixer", [gqa(), mla(), kda()], ids=["gqa", "mla", "kda"])
def test_a_cache_of_half_precision_loses_no_more_than_it_must(contract, mixer):
    contract(tiny(mixer, more="cache: {policy: full, dtype: float16}"), tolerance=1e-2)


def test_a_hybrid_of_all_mixers_and_feed_forwards_keeps_the_contract(contract):
    contract(
        tiny(
            gqa("sliding_window: 5"),
            moe(keys="num_shared_experts: 1"),
            stack="{num_layers: 3, block: pre_norm, mixer: [other, mixer, third], ffn: [plain, ffn, ffn]}",
        ).replace("ffns:", f"  other: {kda()}\n  third: {mla()}\nffns:\n  plain: {swiglu()}")
    )
