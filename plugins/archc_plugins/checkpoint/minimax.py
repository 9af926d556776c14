"""MiniMax-01: lightning attention beside softmax attention, experts in every layer, a residual stream that is normed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.config import Config
from archc.checkpoint.rules import Dropped, Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import ATTENTION
from archc_plugins.checkpoint.mixtral import Mixtral
from archc_plugins.checkpoint.qwen3_next import at

DECAYS = Dropped(
    r"model\.layers\.\d+\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)",
    "decays follow from the number of heads and layers",
    kept=True,
)
_NAMES = {"full_attention": "attn", "linear_attention": "lightning", 1: "attn", 0: "lightning"}


class MiniMax(Mixtral):
    """MiniMaxForCausalLM."""

    model_class: ClassVar[str] = "MiniMaxForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Mixtral.defaults,
        "layer_types": None,
        "block_size": 256,
        "full_attn_alpha_factor": 1,
        "full_attn_beta_factor": 1,
        "linear_attn_alpha_factor": 1,
        "linear_attn_beta_factor": 1,
        "mlp_alpha_factor": 1,
        "mlp_beta_factor": 1,
    }
    dropped: ClassVar[Sequence[Dropped]] = (*Mixtral.dropped, DECAYS)

    def spec(self, config: Config) -> dict[str, Any]:
        config.expect("postnorm", True, None, why="asks for a stream that is not normed; this family's is")
        config.expect("shared_intermediate_size", 0, why="asks for a shared expert; this family has none")
        config.ignore("shared_moe_mode", why="there is no shared expert")
        config.ignore("block_size", why="tokens a block, which is how it is computed, not what")
        found = super().spec(rotated_share(config))
        dtype = self.dtype(config)
        if "lightning" in found["mixers"] and dtype != "float32":
            # transformers keeps this state, unlike those of other linear mixers, in the dtype of the activations.
            found["cache"] = {"policy": "full", "state_dtype": dtype}
        return found

    def schedule(self, config: Config, layers: int, mixer: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        types = config.take("layer_types", "attn_type_list")
        if types is None:
            types = ["linear_attention" if layer % 2 else "full_attention" for layer in range(layers)]
        if len(types) != layers or not set(types) <= set(_NAMES):
            key = "layer_types" if "layer_types" in config.data else "attn_type_list"
            config.refuse(key, f"should say full_attention (1) or linear_attention (0) for each of {layers} layers")
            return ["attn"] * layers, {"attn": mixer}
        names = [_NAMES[kind] for kind in types]
        lightning = {"kind": "lightning", "num_heads": mixer["num_heads"], "head_dim": mixer["head_dim"]}
        full, linear = _block(config, "full"), _block(config, "linear")
        if full != linear and "attn" in names:
            lightning["block"] = linear
        return names, {name: keys for name, keys in (("attn", mixer), ("lightning", lightning)) if name in names}

    def block(self, config: Config) -> Any:
        types = config.data.get("layer_types", config.data.get("attn_type_list"))
        has_full = not types or any(_NAMES.get(kind) == "attn" for kind in types)
        return _block(config, "full" if has_full else "linear")

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return _by_layer(graph, config, super().rules(graph, config))

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        found = super().other_layouts(graph, config)
        return {name: _by_layer(graph, config, rules) for name, rules in found.items()}


class MiniMaxText01(MiniMax):
    """The same model as its makers published it, whose configuration has other names for some keys."""

    model_class: ClassVar[str] = "MiniMaxText01ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        key: value for key, value in MiniMax.defaults.items() if key not in ("layer_types", "block_size")
    }


def rotated_share(config: Config) -> Config:
    """``rotary_dim`` says as channels what ``partial_rotary_factor`` says as a share.

    It is honoured; transformers' class of MiniMax-01 turns whole heads whatever it says.
    """
    width = config.take("rotary_dim", default=None)
    stated = "partial_rotary_factor" in {**config.data, **(config.data.get("rope_parameters") or {})}
    if width is not None and not stated:
        heads, hidden = (config.take(name) for name in ("num_attention_heads", "hidden_size"))
        share = width / (config.take("head_dim") or hidden // heads)
        config.defaults = {**config.defaults, "partial_rotary_factor": share}
    return config


def _block(config: Config, kind: str) -> Any:
    """The layout of layers of ``full`` or ``linear`` attention: what stream and branch are multiplied by."""
    sides = {"skip_multiplier": "alpha", "residual_multiplier": "beta"}
    factors, of_ffn = (
        {name: config.take(f"{new}_{side}_factor", f"layernorm_{old}_{side}") for name, side in sides.items()}
        for new, old in ((f"{kind}_attn", f"{kind}_attention"), ("mlp", "mlp"))
    )
    found = {name: float(value) for name, value in factors.items() if value != 1}
    found |= {f"ffn_{name}": float(value) for name, value in of_ffn.items() if value != factors[name]}
    return {"kind": "normed_residual", **found} if found else "normed_residual"


def _by_layer(graph: Graph, config: Mapping[str, Any], rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Rules of which those for attention hold where there is softmax attention, and lightning attention's elsewhere."""
    names = graph.params()
    layers = range(graph.num_layers)
    linear = [layer for layer in layers if f"layers.{layer}.mixer.o_norm.weight" in names]
    full = [layer for layer in layers if layer not in linear]
    elsewhere = tuple(entry for entry in rules if entry not in ATTENTION)
    return (*elsewhere, *at(full, ATTENTION), *at(linear, _lightning(config)))


def _lightning(config: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Queries, keys and values are one matrix, whose rows are sorted by head."""
    heads = config.get("num_attention_heads", MiniMax.defaults["num_attention_heads"])
    there, here = "model.layers.{i}.self_attn", "layers.{i}.mixer"
    parts = (f"{here}.{name}_proj.weight" for name in "qkv")
    named = {"norm": "o_norm", "output_gate": "g_proj", "out_proj": "o_proj"}
    return (
        rule(f"{there}.qkv_proj.weight", *parts, groups=heads),
        *(rule(f"{there}.{name}.weight", f"{here}.{ours}.weight") for name, ours in named.items()),
    )
