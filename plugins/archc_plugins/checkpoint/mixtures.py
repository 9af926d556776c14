"""What families with experts share: names of their tensors, published and stacked, and the keys of their routers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from archc.checkpoint.config import Config
from archc.checkpoint.rules import LeftOut, Rule, both, rule

GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")
"""Suffixes of an expert's three matrices in most families."""
W1_W3_W2 = ("w1", "w3", "w2")
"""The same three, as Mixtral and those after it call them."""


def experts(module: str, names: Sequence[str] = GATE_UP_DOWN) -> tuple[Rule, ...]:
    """Published files hold one tensor an expert and matrix; ``module`` is the template of the list of experts."""
    return tuple(
        rule(f"{module}.{{e}}.{there}.weight", f"layers.{{i}}.ffn.experts.{here}")
        for there, here in zip(names, GATE_UP_DOWN, strict=True)
    )


def stacked_experts(module: str) -> tuple[Rule, ...]:
    """What transformers computes with, and some files hold: all experts in one tensor, the gate's rows before up's."""
    gate, up, down = (f"layers.{{i}}.ffn.experts.{name}" for name in GATE_UP_DOWN)
    return (rule(f"{module}.gate_up_proj", gate, up, axis=1), rule(f"{module}.down_proj", down))


def shared_expert(module: str) -> tuple[Rule, ...]:
    """The expert that is always on."""
    return tuple(
        entry for name in GATE_UP_DOWN for entry in both(f"{module}.{name}", f"layers.{{i}}.ffn.shared_experts.{name}")
    )


def router(module: str) -> tuple[Rule, ...]:
    """The router's matrix, and the bias for its choice where it has one."""
    return (
        rule(f"{module}.weight", "layers.{i}.ffn.router.weight"),
        rule(f"{module}.e_score_correction_bias", "layers.{i}.ffn.router.e_score_correction_bias"),
    )


def dense_then_moe(layers: int, is_dense: Callable[[int], bool]) -> list[str]:
    """``dense`` or ``moe`` for every layer, counted from 0."""
    return ["dense" if is_dense(layer) else "moe" for layer in range(layers)]


def placed(names: Sequence[str], ffns: Mapping[str, Any]) -> dict[str, Any]:
    """The feed-forwards that a schedule places."""
    return {name: ffn for name, ffn in ffns.items() if name in names}


def grouped_router(config: Config, *, groups: str = "n_group", renormalised: str = "norm_topk_prob") -> dict[str, Any]:
    """The router of DeepSeek-V3 and those after it: sigmoid, a bias for the choice, groups, a factor."""
    found: dict[str, Any] = {
        "scoring_func": "sigmoid",
        "correction_bias": True,
        "norm_topk_prob": bool(config.take(*renormalised.split())),
    }
    factor = float(config.take("routed_scaling_factor"))
    if factor != 1.0:
        found["routed_scaling_factor"] = factor
    return found | expert_groups(config, groups)


def expert_groups(config: Config, groups: str = "n_group") -> dict[str, Any]:
    """``n_group`` and ``topk_group``, where they limit the choice."""
    count, kept = config.take(*groups.split()) or 1, config.take("topk_group") or 1
    return {"n_group": count, "topk_group": kept} if count > 1 else {}


def says_one_kind_of_routing(config: Config) -> None:
    """Keys by which published files name the router that this family has anyway."""
    config.expect("scoring_func", "sigmoid", why="is not the score of this family, sigmoid")
    config.expect("topk_method", "noaux_tc", None, why="is not how this family chooses experts, noaux_tc")
    trained_only(config)


def trained_only(config: Config) -> None:
    """Keys of DeepSeek's files that matter in training alone, or to how the weights are spread."""
    config.ignore("aux_loss_alpha", "seq_aux", "router_aux_loss_coef", "router_z_loss_coef", why="training only")
    config.ignore("ep_size", why="how experts are spread over devices")
    config.expect("moe_layer_freq", 1, why="asks for experts in some layers only; every one after the first has them")


FURTHER_TOKENS = "predicts further tokens; archc builds the layers of the model itself"
_LAYERS_THAT_PREDICT = "of layers that predict further tokens"


def layers_from(count: int, further: int) -> tuple[LeftOut, ...]:
    """Tensors of the layers after the last ``count``: those that predict further tokens."""
    return tuple(LeftOut(f"model.layers.{layer}.*", _LAYERS_THAT_PREDICT) for layer in range(count, count + further))


MTP_TENSORS = LeftOut("mtp.*", _LAYERS_THAT_PREDICT)
