"""Kimi Linear: Kimi Delta Attention beside latent attention that turns nothing, experts as DeepSeek-V3 has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import silu_only, stack, stated_types, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.deepseek import LATENT, latent_attention
from archc_plugins.checkpoint.llama import ENDS, MLP, PRE_NORMS, ROTARY_BUFFERS
from archc_plugins.checkpoint.mixtures import (
    GATE_UP_DOWN,
    W1_W3_W2,
    dense_then_moe,
    experts,
    grouped_router,
    placed,
    router,
    says_one_kind_of_routing,
    shared_expert,
    stacked_experts,
)

_DELTA, _OURS, _MOE = "model.layers.{i}.self_attn", "layers.{i}.mixer", "model.layers.{i}.block_sparse_moe"
DELTA: tuple[Rule, ...] = (
    # q_proj and o_proj are among those of latent attention, under the same names.
    *(
        rule(f"{_DELTA}.{name}.weight", f"{_OURS}.{name}.weight")
        for name in ("k_proj", "v_proj", "f_a_proj", "f_b_proj", "b_proj", "g_a_proj", "g_b_proj", "o_norm")
    ),
    *(rule(f"{_DELTA}.{n}_conv1d.weight", f"{_OURS}.conv.{n}_conv1d.weight") for n in "qkv"),
    rule(f"{_DELTA}.A_log", f"{_OURS}.forget_gate.A_log", view=(1, 1, -1, 1)),
    rule(f"{_DELTA}.dt_bias", f"{_OURS}.forget_gate.dt_bias"),
)
_BUT_FFNS: tuple[Rule, ...] = (*ENDS, *PRE_NORMS, *LATENT, *DELTA)
_EXPERTS: tuple[Rule, ...] = (
    *router(f"{_MOE}.gate"),
    *shared_expert(f"{_MOE}.shared_experts"),
    *experts(f"{_MOE}.experts", W1_W3_W2),
)
_DENSE_AS_SAVED = tuple(rule(f"{_MOE}.{name}.weight", f"layers.{{i}}.ffn.{name}.weight") for name in GATE_UP_DOWN)
_STACKED: tuple[Rule, ...] = (
    *router("model.layers.{i}.mlp.gate"),
    *shared_expert("model.layers.{i}.mlp.shared_experts"),
    *stacked_experts("model.layers.{i}.mlp.experts"),
)


class KimiLinear(Checkpoint):
    """KimiLinearForCausalLM."""

    model_class: ClassVar[str] = "KimiLinearForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 163840,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "moe_intermediate_size": 1024,
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.446,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "num_expert_group": 1,
        "topk_group": 1,
        "num_experts_per_token": 8,
        "moe_renormalize": True,
        "hidden_act": "silu",
        "model_max_length": 1048576,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 163839,
        "bos_token_id": 163584,
        "eos_token_id": 163586,
        "attention_bias": False,
        "num_experts": 256,
        "mlp_layer_types": None,
        "layer_types": None,
        "linear_head_dim": 128,
        "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4,
        "first_k_dense_replace": 1,
    }
    dropped: ClassVar[Sequence[Dropped]] = (ROTARY_BUFFERS,)

    def spec(self, config: Config) -> dict[str, Any]:
        layers = config.take("num_hidden_layers")
        silu_only(config)
        config.expect("mla_use_nope", True, why="asks for a rotation that this family has not")
        config.ignore("rope_theta", "rope_scaling", "rope_parameters", why="nothing turns")
        config.ignore("tie_word_embeddings", why="this family has a head of its own, whatever is said here")
        names, delta = self._schedule(config, layers)
        mixers = {"kda": delta, "mla": latent_attention(config)}
        ffn_names = self._dense_layers(config, layers)
        ffns = {
            "dense": {"kind": "swiglu", "intermediate_size": config.take("intermediate_size")},
            "moe": self._moe(config),
        }
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": config.take("hidden_size"), "tie_word_embeddings": False},
            "position": "none",
            "norm": {"kind": "rms_norm", "eps": config.take("rms_norm_eps")},
            "max_position_embeddings": config.take("model_max_length", "max_position_embeddings"),
            "mixers": placed(names, mixers),
            "ffns": placed(ffn_names, ffns),
            "stack": stack(names, ffn_names),
        }

    def _schedule(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        """(a mixer a layer, the delta mixer). ``linear_attn_config`` counts its layers from 1."""
        inner = config.section("linear_attn_config") or Config({}, problems=config.problems, accounts=config.accounts)

        def stated(name: str, outer: str) -> Any:
            if not inner.has(name):
                return config.take(outer)
            config.ignore(outer, why="linear_attn_config says it")
            return inner.take(name)

        delta = {
            "kind": "kda",
            "num_heads": stated("num_heads", "linear_num_heads"),
            "head_dim": stated("head_dim", "linear_head_dim"),
            "conv_kernel": stated("short_conv_kernel_size", "linear_conv_kernel_dim"),
        }
        delta |= self._more_of_delta(inner)
        full, linear = inner.take("full_attn_layers", default=None), inner.take("kda_layers", default=None)
        inner.finish()
        types = stated_types(config, layers, "linear_attention", "full_attention")
        if types is None and full is not None and linear is not None:
            if sorted([*full, *linear]) != list(range(1, layers + 1)):
                config.problems.append(
                    f"linear_attn_config: full_attn_layers and kda_layers should name each of 1 to {layers} once"
                )
            types = ["full_attention" if layer + 1 in full else "linear_attention" for layer in range(layers)]
        elif types is None:
            types = ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(layers)]
        return ["mla" if kind == "full_attention" else "kda" for kind in types], delta

    def _more_of_delta(self, inner: Config) -> dict[str, Any]:
        """Further keys of the delta mixer, from ``linear_attn_config``."""
        return {}

    def _dense_layers(self, config: Config, layers: int) -> list[str]:
        types = stated_types(config, layers, "dense", "sparse", key="mlp_layer_types")
        if types is not None:
            config.ignore("first_k_dense_replace", why="mlp_layer_types says it")
            return ["dense" if kind == "dense" else "moe" for kind in types]
        first = config.take("first_k_dense_replace")
        return dense_then_moe(layers, lambda layer: layer < first)

    def _moe(self, config: Config) -> dict[str, Any]:
        says_one_kind_of_routing(config)
        config.expect("moe_router_activation_func", "sigmoid", why="is not the score of this family, sigmoid")
        config.expect("use_grouped_topk", True, why="asks for a choice without groups; num_expert_group: 1 says that")
        config.expect("num_nextn_predict_layers", 0, None, why="asks for layers that this family has not")
        return {
            "kind": "moe",
            "num_experts": config.take("num_experts", "num_local_experts", "n_routed_experts"),
            "num_experts_per_tok": config.take("num_experts_per_token", "num_experts_per_tok"),
            "num_shared_experts": config.take("num_shared_experts", "n_shared_experts") or 0,
            "intermediate_size": config.take("moe_intermediate_size"),
            "router": grouped_router(
                config, groups="num_expert_group n_group", renormalised="moe_renormalize norm_topk_prob"
            ),
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*_BUT_FFNS, *MLP, *_EXPERTS)

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {
            # save_pretrained undoes the renaming of experts in the dense layers, too.
            "dense layers named as experts": (*_BUT_FFNS, *_DENSE_AS_SAVED, *_EXPERTS),
            "stacked experts": (*_BUT_FFNS, *MLP, *_STACKED),
        }
