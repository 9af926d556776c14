"""OLMo Hybrid: gated DeltaNet layers with norms before their branches, attention layers with norms after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import rope, silu_only, stack, stated_types, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import ATTENTION, ENDS, MLP, QK_NORMS, ROTARY_BUFFERS
from archc_plugins.checkpoint.qwen3_next import at, delta_layers

_DELTA, _OURS = "model.layers.{i}.linear_attn", "layers.{i}.mixer"
_CONVS = tuple(rule(f"{_DELTA}.{n}_conv1d.weight", f"{_OURS}.conv.{n}_conv1d.weight") for n in "qkv")
_BUT_CONVS: tuple[Rule, ...] = (
    *(
        rule(f"{_DELTA}.{name}.weight", f"{_OURS}.{name}.weight")
        for name in ("q_proj", "k_proj", "v_proj", "a_proj", "b_proj", "g_proj", "o_norm", "o_proj")
    ),
    rule(f"{_DELTA}.A_log", f"{_OURS}.forget_gate.A_log"),
    rule(f"{_DELTA}.dt_bias", f"{_OURS}.forget_gate.dt_bias"),
    rule("model.layers.{i}.attention_layer_norm.weight", "layers.{i}.mixer_norm.weight"),
    rule("model.layers.{i}.feedforward_layer_norm.weight", "layers.{i}.ffn_norm.weight"),
)
_AFTER_FFN = rule("model.layers.{i}.post_feedforward_layernorm.weight", "layers.{i}.ffn_output_norm.weight")
_AFTER_MIXER = "layers.{i}.mixer_output_norm.weight"
_WIDTHS = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
_O_NORM_EPS = 1e-5
"""Of the delta rule's output, whatever the configuration says."""


class OlmoHybrid(Checkpoint):
    """OlmoHybridForCausalLM."""

    model_class: ClassVar[str] = "OlmoHybridForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 100352,
        "hidden_size": 3840,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 30,
        "num_key_value_heads": None,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 100277,
        "bos_token_id": None,
        "eos_token_id": 100257,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "layer_types": None,
        "linear_num_key_heads": None,
        "linear_num_value_heads": None,
        "linear_key_head_dim": None,
        "linear_value_head_dim": None,
        "linear_conv_kernel_dim": 4,
        "linear_allow_neg_eigval": True,
    }
    dropped: ClassVar[Sequence[Dropped]] = (ROTARY_BUFFERS,)

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, layers = config.take("hidden_size"), config.take("num_hidden_layers")
        heads, length = config.take("num_attention_heads"), config.take("max_position_embeddings")
        config.ignore(
            *(f"linear_{name}" for name in ("a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor")),
            why="of weights that are not loaded",
        )
        config.expect("linear_use_gate", True, why="asks for no gate on the output of the delta rule; there is one")
        eps, head_dim = config.take("rms_norm_eps"), config.take("head_dim") or hidden // heads
        attention: dict[str, Any] = {
            "kind": "gqa",
            "num_heads": heads,
            "num_kv_heads": config.take("num_key_value_heads") or heads,
            "head_dim": head_dim,
            "qk_norm": "width",
            "block": "output_norm",
        }
        if config.take("attention_bias"):
            attention |= {"qkv_bias": True, "o_bias": True}
        types = stated_types(config, layers, "linear_attention", "full_attention") or _usual_types(layers)
        names = ["attn" if kind == "full_attention" else "gdn" for kind in types]
        silu_only(config)
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": hidden, "tie_word_embeddings": bool(config.take("tie_word_embeddings"))},
            "position": self._position(config, head_dim, length),
            "norm": {"kind": "rms_norm", "eps": eps},
            "max_position_embeddings": length,
            "mixers": {"gdn": self._delta(config, hidden, heads, eps), "attn": attention},
            "ffns": {"mlp": {"kind": "swiglu", "intermediate_size": config.take("intermediate_size")}},
            "stack": stack(names, "mlp"),
        }

    def _position(self, config: Config, head_dim: int, length: int) -> Any:
        """Attention turns unless the theta is null. One that isn't stated is transformers' default, and attention turns."""
        inner = config.section("rope_parameters")
        place = inner if inner is not None and "rope_theta" in inner.data else config
        if "rope_theta" not in place.data or place.has("rope_theta"):
            return rope(config, head_dim=head_dim, length=length)
        place.take("rope_theta")
        config.ignore("rope_theta", "rope_scaling", why="nothing turns")
        if inner is not None:
            inner.expect("rope_type", "default", why="asks for a scaling of a rotation that is switched off")
            inner.finish()
        return "none"

    def _delta(self, config: Config, hidden: int, heads: int, eps: float) -> dict[str, Any]:
        stated = {name: config.take(name) for name in _WIDTHS}
        found: dict[str, Any] = {
            "kind": "gated_deltanet",
            **_delta_sizes(stated, hidden, heads),
            "conv_kernel": config.take("linear_conv_kernel_dim"),
        }
        if config.take("linear_allow_neg_eigval"):
            found["allow_neg_eigval"] = True
        if eps != _O_NORM_EPS:
            found["o_norm_eps"] = _O_NORM_EPS
        return found

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        after_mixer = rule("model.layers.{i}.post_attention_layernorm.weight", _AFTER_MIXER)
        return self._rules(graph, _CONVS, after_mixer)

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        # save_pretrained undoes the renaming of the delta layers' norm in the attention layers, too, and cuts the one
        # convolution of a layer in equal thirds, wherever queries, keys and values begin.
        after_mixer = rule("model.layers.{i}.feedforward_layer_norm.weight", _AFTER_MIXER)
        stated = {**self.defaults, **config}
        sizes = _delta_sizes(stated, stated["hidden_size"], stated["num_attention_heads"])
        keys = sizes["num_key_heads"] * sizes["key_head_dim"]
        thirds = _thirds(keys, sizes["num_value_heads"] * sizes["value_head_dim"])
        return {"as saved": self._rules(graph, thirds, after_mixer)}

    def _rules(self, graph: Graph, convs: Sequence[Rule], after_mixer: Rule) -> Sequence[Rule]:
        delta, full = delta_layers(graph)
        return (
            *ENDS,
            *MLP,
            *at(delta, (*_BUT_CONVS, *convs)),
            *at(full, (*ATTENTION, *QK_NORMS, after_mixer, _AFTER_FFN)),
        )


def _delta_sizes(stated: Mapping[str, Any], hidden: int, heads: int) -> dict[str, int]:
    """Heads and widths of the delta rule; what is not stated follows from the attention's."""
    key_heads = stated["linear_num_key_heads"] or heads
    key_dim = stated["linear_key_head_dim"] or int(0.75 * hidden / key_heads)
    return {
        "num_key_heads": key_heads,
        "num_value_heads": stated["linear_num_value_heads"] or heads,
        "key_head_dim": key_dim,
        "value_head_dim": stated["linear_value_head_dim"] or 2 * key_dim,
    }


def _thirds(keys: int, values: int) -> tuple[Rule, ...]:
    """Rules for [q | k | v] of widths ``keys``, ``keys`` and ``values``, cut in three tensors as torch's chunk cuts."""
    total, found = 2 * keys + values, list[Rule]()
    begins = {"q": (0, keys), "k": (keys, 2 * keys), "v": (2 * keys, total)}
    size = -(-total // 3)
    for third, name in enumerate("qkv"):
        start, stop = third * size, min((third + 1) * size, total)
        inside = {
            n: (max(start, first) - first, min(stop, last) - first)
            for n, (first, last) in begins.items()
            if max(start, first) < min(stop, last)
        }
        ours = tuple(f"{_OURS}.conv.{n}_conv1d.weight" for n in inside)
        found.append(Rule(f"{_DELTA}.{name}_conv1d.weight", ours, rows=tuple(inside.values())))
    return tuple(found)


def _usual_types(layers: int) -> list[str]:
    """Every fourth layer attends, and the last one where no other does."""
    types = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)]
    return types if "full_attention" in types else [*types[:-1], "full_attention"]
