"""MiniMax-M2: sigmoid-routed experts, norms of queries and keys over their whole width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.config import Config
from archc.checkpoint.rules import LeftOut, Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.mixtral import Mixtral
from archc_plugins.checkpoint.mixtures import FURTHER_TOKENS, MTP_TENSORS

_ONES = ("layernorm_full_attention", "layernorm_linear_attention", "layernorm_mlp")


class MiniMaxM2(Mixtral):
    """MiniMaxM2ForCausalLM."""

    model_class: ClassVar[str] = "MiniMaxM2ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 200064,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 196608,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5e6,
        "pad_token_id": None,
        "bos_token_id": 200034,
        "eos_token_id": 200020,
        "tie_word_embeddings": False,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
    }

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        return (MTP_TENSORS,)

    def spec(self, config: Config) -> dict[str, Any]:
        config.expect("scoring_func", "sigmoid", why="is not the score of this family, sigmoid")
        config.expect("use_routing_bias", True, why="asks for no bias in the choice; this family has one")
        config.expect("use_qk_norm", True, why="asks for no norm of queries and keys; this family has one")
        config.expect("qk_norm_type", "per_layer", why="is not the norm of this family, over the whole width")
        config.expect("shared_intermediate_size", 0, why="asks for a shared expert; this family has none")
        config.expect("attention_bias", False, why="asks for biases that this family has not")
        layers = config.data.get("num_hidden_layers", self.defaults["num_hidden_layers"])
        config.expect("attn_type_list", None, [1] * layers, why="asks for layers of linear attention")
        config.ignore("use_mtp", "num_mtp_modules", "mtp_transformer_layers", why=FURTHER_TOKENS)
        config.ignore("shared_moe_mode", why="there is no shared expert")
        config.ignore("max_model_len", "rope_type", why="of the server")
        for branch in _ONES:
            for factor in ("alpha", "beta"):
                config.expect(f"{branch}_{factor}", 1.0, None, why="asks for a factor that this family has not")
        return super().spec(self._rotated_share(config))

    def _rotated_share(self, config: Config) -> Config:
        """``rotary_dim`` says as channels what ``partial_rotary_factor`` says as a share."""
        width = config.take("rotary_dim", default=None)
        inner = config.data.get("rope_parameters")
        stated = "partial_rotary_factor" in config.data or "partial_rotary_factor" in (inner or {})
        if width is not None and not stated:
            share = width / config.data.get("head_dim", self.defaults["head_dim"])
            config.defaults = {**config.defaults, "partial_rotary_factor": share}
        return config

    def attention(self, config: Config) -> dict[str, Any]:
        return {"qk_norm": "width"}

    def router(self, config: Config) -> dict[str, Any]:
        return {"scoring_func": "sigmoid", "correction_bias": True, "norm_topk_prob": True}

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        bias = "layers.{i}.ffn.router.e_score_correction_bias"
        usual = [entry for entry in super().rules(graph, config) if bias not in entry.ours]
        return (*usual, rule("model.layers.{i}.block_sparse_moe.e_score_correction_bias", bias))

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        bias = "layers.{i}.ffn.router.e_score_correction_bias"
        return {
            name: (
                *(entry for entry in rules if bias not in entry.ours),
                rule("model.layers.{i}.mlp.e_score_correction_bias", bias),
            )
            for name, rules in super().other_layouts(graph, config).items()
        }
