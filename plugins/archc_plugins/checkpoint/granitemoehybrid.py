"""Granite 4: Mamba-2 and attention, an MLP that is always on beside experts, and Granite's four factors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import rope
from archc.checkpoint.config import Config
from archc.checkpoint.rules import Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.granite import Granite
from archc_plugins.checkpoint.llama import ATTENTION, ENDS, PRE_NORMS
from archc_plugins.checkpoint.mamba2 import mamba_rules, step_limit, without_switches

_LAYER, _FFN = "model.layers.{i}", "layers.{i}.ffn"
_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
_NAMES = {"linear_attention": "mamba", "mamba": "mamba", "full_attention": "attn", "attention": "attn"}


class GraniteMoeHybrid(Granite):
    """GraniteMoeHybridForCausalLM."""

    model_class: ClassVar[str] = "GraniteMoeHybridForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        **{key: value for key, value in Granite.defaults.items() if key != "mlp_bias"},
        "layer_types": None,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_head": "auto",
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "time_step_limit": (0.0, math.inf),
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
        "position_embedding_type": None,
    }

    def schedule(self, config: Config, layers: int, mixer: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        types = config.take("layer_types", "layers_block_type") or ["linear_attention"] * layers
        unknown = sorted({str(kind) for kind in types} - set(_NAMES))
        if unknown or len(types) != layers:
            config.refuse("layer_types", f"should name {layers} layers, each by one of {', '.join(_NAMES)}")
            return ["attn"] * layers, {"attn": mixer}
        names = [_NAMES[kind] for kind in types]
        mixers = {"mamba": self.mamba(config), "attn": mixer}
        return names, {name: entry for name, entry in mixers.items() if name in names}

    def mamba(self, config: Config) -> dict[str, Any]:
        """The Mamba-2 of every layer that has one."""
        width, heads = config.take("mamba_expand") * config.take("hidden_size"), config.take("mamba_n_heads")
        stated = config.take("mamba_d_head")
        head_dim = width // heads if stated in (None, "auto") else stated
        if heads * head_dim != width:
            config.refuse("mamba_d_head", f"times {heads} heads is not the width of the mixer, {width}")
        config.ignore("mamba_chunk_size", why="how it is computed, not what")
        config.ignore("use_mamba_kernels", why="how it is computed, not what")
        mixer: dict[str, Any] = {
            "kind": "mamba2",
            "num_heads": heads,
            "head_dim": head_dim,
            "state_size": config.take("mamba_d_state"),
            "n_groups": config.take("mamba_n_groups"),
            "conv_kernel": config.take("mamba_d_conv"),
            **step_limit(config),
            "bias": bool(config.take("mamba_proj_bias")),
            "conv_bias": bool(config.take("mamba_conv_bias")),
        }
        return without_switches(mixer)

    def spec(self, config: Config) -> dict[str, Any]:
        body = super().spec(config)
        config.ignore("init_method", "normalization_function", why="how transformers calls what this family always has")
        return body

    def position(self, config: Config, *, head_dim: int, length: int) -> Any:
        """Rotation where ``position_embedding_type`` asks for it; any other word, none included, means no positions."""
        if config.take("position_embedding_type") == "rope":
            return rope(config, head_dim=head_dim, length=length)
        config.ignore(*_ROPE_KEYS, why="position_embedding_type asks for no rotation")
        return "none"

    def feed_forwards(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        config.expect("hidden_act", "silu", why="is not the activation that archc has here, silu")
        experts, shared = config.take("num_local_experts") or 0, config.take("shared_intermediate_size")
        if not experts:
            config.ignore("intermediate_size", "num_experts_per_tok", why="there are no experts")
            return ["mlp"] * layers, {"mlp": {"kind": "swiglu", "intermediate_size": shared}}
        moe = {
            "kind": "moe",
            "num_experts": experts,
            "num_experts_per_tok": config.take("num_experts_per_tok"),
            "num_shared_experts": 1,
            "shared_intermediate_size": shared,
            "intermediate_size": config.take("intermediate_size"),
            "router": {"scoring_func": "softmax", "norm_topk_prob": True},
        }
        return ["moe"] * layers, {"moe": moe}

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        experts = config.get("num_local_experts", self.defaults["num_local_experts"])
        shared = f"{_FFN}.shared_experts" if experts else _FFN
        gate, up, down = (f"{shared}.{name}_proj.weight" for name in ("gate", "up", "down"))
        return (
            *ENDS,
            *PRE_NORMS,
            *ATTENTION,
            *mamba_rules(f"{_LAYER}.mamba"),
            rule(f"{_LAYER}.shared_mlp.input_linear.weight", gate, up),
            rule(f"{_LAYER}.shared_mlp.output_linear.weight", down),
            rule(f"{_LAYER}.block_sparse_moe.router.layer.weight", f"{_FFN}.router.weight"),
            rule(
                f"{_LAYER}.block_sparse_moe.input_linear.weight",
                f"{_FFN}.experts.gate_proj",
                f"{_FFN}.experts.up_proj",
                axis=1,
            ),
            rule(f"{_LAYER}.block_sparse_moe.output_linear.weight", f"{_FFN}.experts.down_proj"),
        )
