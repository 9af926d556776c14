"""Mamba-2: layers of one mixer each, and what other families with such mixers share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from archc.checkpoint.common import tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Rule, both, rule
from archc.graph.graph import Graph

NO_STEP_IS_LONGER = 1e30
"""A highest step that never counts, for files that state a lowest one alone."""
OF_FIRST_VALUES = "of weights that are not loaded"
PRECISION = "in which precision the stream is kept, not what is computed"


def mamba_rules(module: str) -> tuple[Rule, ...]:
    """Weights of a mixer; its projection in holds the gate, x, B, C and the step, its convolution x, B and C."""
    ours = "layers.{i}.mixer"
    return (
        *both(f"{module}.in_proj", *(f"{ours}.{name}_proj" for name in ("gate", "x", "b", "c", "dt"))),
        *both(f"{module}.conv1d", *(f"{ours}.conv.{name}_conv1d" for name in "xbc")),
        *(rule(f"{module}.{name}", f"{ours}.state_space.{name}") for name in ("A_log", "dt_bias", "D")),
        rule(f"{module}.norm.weight", f"{ours}.o_norm.weight"),
        *both(f"{module}.out_proj", f"{ours}.out_proj"),
    )


def step_limit(config: Config, name: str = "time_step_limit") -> dict[str, Any]:
    """``time_step_limit``, where it limits anything; files write infinity as a mapping."""
    stated = config.take(name)
    if stated is None:
        return {}
    low, high = (_number(bound) for bound in stated)
    if low == 0.0 and math.isinf(high):
        return {}
    return {"time_step_limit": [low, NO_STEP_IS_LONGER if math.isinf(high) else high]}


def _number(bound: Any) -> float:
    return float(cast("Mapping[str, Any]", bound)["__float__"] if isinstance(bound, Mapping) else bound)


class Mamba2(Checkpoint):
    """Mamba2ForCausalLM."""

    model_class: ClassVar[str] = "Mamba2ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 32768,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        "expand": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "hidden_act": "silu",
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": (0.0, math.inf),
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, heads, head_dim = config.take("hidden_size"), config.take("num_heads"), config.take("head_dim")
        if config.take("expand") * hidden != heads * head_dim:
            config.refuse("expand", f"times hidden_size is not the width of {heads} heads of {head_dim}")
        if config.take("intermediate_size", default=heads * head_dim) != heads * head_dim:
            config.refuse("intermediate_size", f"is not the width of {heads} heads of {head_dim}")
        config.expect("rms_norm", True, why="asks for no norm before the projection out")
        config.ignore("norm_before_gate", why="transformers' class gates before it norms, whatever this says")
        config.expect("hidden_act", "silu", why="is not the activation that archc has here, silu")
        config.ignore("residual_in_fp32", why=PRECISION)
        config.ignore("chunk_size", why="how it is computed, not what")
        config.ignore(
            "time_step_rank",
            "time_step_min",
            "time_step_max",
            "time_step_floor",
            "time_step_init_scheme",
            "time_step_scale",
            "rescale_prenorm_residual",
            why=OF_FIRST_VALUES,
        )
        config.ignore("layer_types", why="every layer is of one type")
        mixer: dict[str, Any] = {
            "kind": "mamba2",
            "num_heads": heads,
            "head_dim": head_dim,
            "state_size": config.take("state_size"),
            "n_groups": config.take("n_groups"),
            "conv_kernel": config.take("conv_kernel"),
            **step_limit(config),
            "bias": bool(config.take("use_bias")),
            "conv_bias": bool(config.take("use_conv_bias")),
        }
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": hidden, "tie_word_embeddings": bool(config.take("tie_word_embeddings"))},
            "position": "none",
            "norm": {"kind": "rms_norm", "eps": config.take("layer_norm_epsilon")},
            "mixers": {"mamba": without_switches(mixer)},
            "stack": {
                "num_layers": config.take("num_hidden_layers"),
                "block": "pre_norm",
                "mixer": "mamba",
                "ffn": "none",
            },
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (
            rule("backbone.embeddings.weight", "embed_tokens.weight"),
            rule("backbone.layers.{i}.norm.weight", "layers.{i}.mixer_norm.weight"),
            *mamba_rules("backbone.layers.{i}.mixer"),
            rule("backbone.norm_f.weight", "norm.weight"),
            rule("lm_head.weight", "lm_head.weight"),
        )


def without_switches(mixer: Mapping[str, Any]) -> dict[str, Any]:
    """A mamba2 without the switches that say what is so anyway."""
    usual = {"bias": False, "conv_bias": True}
    return {key: value for key, value in mixer.items() if key not in usual or usual[key] != value}
