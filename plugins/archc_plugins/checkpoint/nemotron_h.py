"""Nemotron-H: half-layers of Mamba-2, attention without positions, feed-forwards of squared ReLU, and experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import LeftOut, Naming, Rule, both, rule
from archc.graph.graph import Graph
from archc.spec.patterns import pattern_of
from archc_plugins.checkpoint.mamba2 import (
    NO_STEP_IS_LONGER,
    OF_FIRST_VALUES,
    PRECISION,
    mamba_rules,
    without_switches,
)
from archc_plugins.checkpoint.mixtures import grouped_router

_MIXER, _FFN = "backbone.layers.{i}.mixer", "layers.{i}.ffn"
_LETTERS = {"M": "mamba", "*": "attn", "-": "mlp", "E": "moe"}
_NAMES = {
    "linear_attention": "mamba",
    "mamba": "mamba",
    "full_attention": "attn",
    "attention": "attn",
    "mlp": "mlp",
    "moe": "moe",
}
_USUAL_FLOOR = 0.001
"""The class's floor of steps, which its prefill has and its decode lacks: too low to show, and not written into specs."""
_UP_DOWN = ("up_proj", "down_proj")


class NemotronH(Checkpoint):
    """NemotronHForCausalLM."""

    model_class: ClassVar[str] = "NemotronHForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 131072,
        "hidden_size": 4096,
        "layers_block_type": None,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "intermediate_size": 21504,
        "mlp_hidden_act": "relu2",
        "mlp_bias": False,
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "mamba_hidden_act": "silu",
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "use_bias": False,
        "time_step_min": 0.001,
        "n_routed_experts": 8,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "moe_latent_size": None,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "layer_norm_epsilon": 1e-5,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    other_namings: ClassVar[Sequence[Naming]] = ((("backbone.", "model."),),)

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        return (LeftOut("mtp.*", "layers that predict further tokens"),)

    def spec(self, config: Config) -> dict[str, Any]:
        names = self.schedule(config)
        ways = {"mamba": self.mamba, "attn": self.attention, "mlp": self.mlp, "moe": self.moe}
        parts = {name: ways[name](config) for name in ways if name in names}
        for name in ways:
            if name not in names:
                self.unplaced(config, name)
        self.dead(config)
        length = config.take("max_position_embeddings")
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": config.take("hidden_size"), "tie_word_embeddings": False},
            "position": "none",
            "norm": {"kind": "rms_norm", "eps": config.take("layer_norm_epsilon")},
            "max_position_embeddings": length,
            "mixers": {name: parts[name] for name in ("mamba", "attn") if name in parts},
            **({"ffns": ffns} if (ffns := {name: parts[name] for name in ("mlp", "moe") if name in parts}) else {}),
            "stack": {"num_layers": len(names), "block": "pre_norm", "layers": pattern_of(names)},
        }

    def schedule(self, config: Config) -> list[str]:
        """A name for every half-layer: from a list of types, or from a text of one letter each."""
        types = config.take("layers_block_type", "layer_types")
        config.ignore("num_hidden_layers", why="the list of layers says it")
        if types is not None:
            config.ignore("hybrid_override_pattern", why="the list of layers says it")
            key, names = "layers_block_type", [_NAMES.get(kind, "") for kind in types]
        else:
            pattern = config.take("hybrid_override_pattern", default="ME*-")
            key, names = "hybrid_override_pattern", [_LETTERS.get(letter, "") for letter in pattern]
        if "" in names or not names:
            config.refuse(key, f"should name layers by {', '.join(_NAMES)} or letters of {''.join(_LETTERS)}")
            return ["mamba"]
        return names

    def mamba(self, config: Config) -> dict[str, Any]:
        """The Mamba-2."""
        config.expect("mamba_hidden_act", "silu", why="is not the activation that archc has here, silu")
        floor = float(config.take("mamba_dt_min", "time_step_min"))
        return without_switches(
            {
                "kind": "mamba2",
                "num_heads": config.take("mamba_num_heads"),
                "head_dim": config.take("mamba_head_dim"),
                "state_size": config.take("ssm_state_size"),
                "n_groups": config.take("mamba_n_groups", "n_groups"),
                "conv_kernel": config.take("mamba_d_conv", "conv_kernel"),
                **({"time_step_limit": [floor, NO_STEP_IS_LONGER]} if floor > _USUAL_FLOOR else {}),
                "bias": bool(config.take("use_bias")),
                "conv_bias": bool(config.take("mamba_conv_bias", "use_conv_bias")),
            }
        )

    def attention(self, config: Config) -> dict[str, Any]:
        """The attention; it has no positions and no biases."""
        heads = config.take("num_attention_heads")
        return {
            "kind": "gqa",
            "num_heads": heads,
            "num_kv_heads": config.take("num_key_value_heads") or heads,
            "head_dim": config.take("head_dim", "attention_head_dim"),
        }

    def mlp(self, config: Config) -> dict[str, Any]:
        """The dense feed-forward."""
        bias = {"bias": True} if config.take("mlp_bias") else {}
        return {
            "kind": "mlp",
            "intermediate_size": config.take("intermediate_size"),
            "activation": activation(config, "mlp_hidden_act"),
            **bias,
        }

    def moe(self, config: Config) -> dict[str, Any]:
        """The experts; the one that is always on has a width of its own, however many are counted."""
        if config.take("mlp_bias"):
            config.refuse("mlp_bias", "asks for biases around experts that have none")
        latent = config.take("moe_latent_size")
        return {
            "kind": "moe",
            "num_experts": config.take("n_routed_experts", "num_local_experts"),
            "num_experts_per_tok": config.take("num_experts_per_tok"),
            "intermediate_size": config.take("moe_intermediate_size"),
            "expert": {"kind": "mlp", "activation": activation(config, "mlp_hidden_act")},
            "num_shared_experts": 1,
            "shared_intermediate_size": config.take("moe_shared_expert_intermediate_size"),
            **({} if latent is None else {"latent_size": latent}),
            "router": grouped_router(config),
        }

    def unplaced(self, config: Config, name: str) -> None:
        """Keys of a kind of layer that the model has not."""
        keys = {
            "mamba": "mamba_num_heads mamba_head_dim ssm_state_size mamba_n_groups n_groups mamba_d_conv conv_kernel "
            "use_bias mamba_conv_bias use_conv_bias mamba_hidden_act time_step_min mamba_dt_min",
            "attn": "num_attention_heads num_key_value_heads head_dim attention_head_dim",
            "mlp": "intermediate_size",
            "moe": "n_routed_experts num_local_experts num_experts_per_tok moe_intermediate_size moe_latent_size "
            "moe_shared_expert_intermediate_size routed_scaling_factor n_group topk_group norm_topk_prob",
        }
        config.ignore(*keys[name].split(), why="of layers that the model has not")
        if name in ("mlp", "moe"):
            config.ignore(*(key for key in ("mlp_bias", "mlp_hidden_act") if key not in config.accounts), why="no such")

    def dead(self, config: Config) -> None:
        """Keys that transformers' class never reads, or reads for what changes no number."""
        config.ignore("tie_word_embeddings", why="this family never ties its head")
        config.ignore(
            "attention_bias",
            "mamba_proj_bias",
            "expand",
            "mamba_expand",
            "n_shared_experts",
            "sliding_window",
            "time_step_limit",
            "mamba_dt_limit",
            why="transformers' class does not read it",
        )
        config.ignore(
            "time_step_rank",
            "time_step_max",
            "time_step_floor",
            "mamba_dt_max",
            "mamba_dt_init_floor",
            "rescale_prenorm_residual",
            why=OF_FIRST_VALUES,
        )
        config.ignore("rms_norm_eps", "norm_eps", why="layer_norm_epsilon counts")
        config.ignore("num_query_groups", why="num_key_value_heads counts")
        config.ignore("rope_theta", "partial_rotary_factor", why="attention has no positions here")
        config.ignore("residual_in_fp32", why=PRECISION)
        config.ignore("mamba_ssm_cache_dtype", why="the cache's policy says it")
        config.ignore(
            "chunk_size",
            "mamba_chunk_size",
            "use_mamba_kernels",
            "moe_shared_expert_overlap",
            "num_logits_to_keep",
            why="how it is computed, not what",
        )
        config.ignore(
            "num_nextn_predict_layers",
            "mtp_layers_block_type",
            "mtp_hybrid_override_pattern",
            why="of layers that predict further tokens, which archc does not build",
        )

    def _but_experts(self) -> tuple[Rule, ...]:
        return (
            rule("backbone.embeddings.weight", "embed_tokens.weight"),
            rule("backbone.layers.{i}.norm.weight", "layers.{i}.mixer_norm.weight"),
            rule("backbone.layers.{i}.norm.weight", "layers.{i}.ffn_norm.weight"),
            *mamba_rules(_MIXER),
            *(rule(f"{_MIXER}.{n}_proj.weight", f"layers.{{i}}.mixer.{n}_proj.weight") for n in "qkvo"),
            *(entry for name in _UP_DOWN for entry in both(f"{_MIXER}.{name}", f"{_FFN}.{name}")),
            *(
                rule(f"{_MIXER}.shared_experts.{name}.weight", f"{_FFN}.shared_experts.{name}.weight")
                for name in _UP_DOWN
            ),
            rule(f"{_MIXER}.gate.weight", f"{_FFN}.router.weight"),
            rule(f"{_MIXER}.gate.e_score_correction_bias", f"{_FFN}.router.e_score_correction_bias"),
            rule(f"{_MIXER}.fc1_latent_proj.weight", f"{_FFN}.latent_down_proj.weight"),
            rule(f"{_MIXER}.fc2_latent_proj.weight", f"{_FFN}.latent_up_proj.weight"),
            rule("backbone.norm_f.weight", "norm.weight"),
            rule("lm_head.weight", "lm_head.weight"),
        )

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        experts = (rule(f"{_MIXER}.experts.{{e}}.{name}.weight", f"{_FFN}.experts.{name}") for name in _UP_DOWN)
        return (*self._but_experts(), *experts)

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        stacked = (rule(f"{_MIXER}.experts.{name}", f"{_FFN}.experts.{name}") for name in _UP_DOWN)
        return {"stacked experts": (*self._but_experts(), *stacked)}
