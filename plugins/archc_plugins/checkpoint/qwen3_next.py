"""Qwen3-Next: gated DeltaNet beside gated attention, experts with one that is always on. Fused and interleaved there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import rope, stack, stated_types, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, LeftOut, Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import ATTENTION, ENDS, PRE_NORMS, QK_NORMS, ROTARY_BUFFERS
from archc_plugins.checkpoint.mixtures import MTP_TENSORS
from archc_plugins.checkpoint.qwen3_moe import EXPERTS, FEED_FORWARDS, STACKED, dense_or_moe, routed

_DELTA, _OURS = "model.layers.{i}.linear_attn", "layers.{i}.mixer"
DELTA: tuple[Rule, ...] = (
    rule(
        f"{_DELTA}.conv1d.weight",
        *(f"{_OURS}.conv.{n}_conv1d.weight" for n in "qkv"),
    ),
    rule(f"{_DELTA}.A_log", f"{_OURS}.forget_gate.A_log"),
    rule(f"{_DELTA}.dt_bias", f"{_OURS}.forget_gate.dt_bias"),
    rule(f"{_DELTA}.norm.weight", f"{_OURS}.o_norm.weight"),
    rule(f"{_DELTA}.out_proj.weight", f"{_OURS}.o_proj.weight"),
)
_INSIDE = ("q_proj", "k_proj", "v_proj", "g_proj")


def delta_layers(graph: Graph) -> tuple[list[int], list[int]]:
    """(layers of the delta rule, the other layers), counted from 0."""
    found: dict[int, bool] = {}
    for name in graph.params():
        parts = name.split(".")
        if parts[0] == "layers":
            found[int(parts[1])] = found.get(int(parts[1]), False) or parts[-1] == "A_log"
    return [layer for layer, delta in found.items() if delta], [layer for layer, delta in found.items() if not delta]


def at(layers: Iterable[int], rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Rules for these layers alone: names that two kinds of mixers share mean different tensors there."""
    return tuple(
        Rule(
            entry.theirs.replace("{i}", str(layer)),
            tuple(name.replace("{i}", str(layer)) for name in entry.ours),
            entry.layout,
            entry.rows,
        )
        for layer in layers
        for entry in rules
    )


class Qwen3Next(Checkpoint):
    """Qwen3NextForCausalLM."""

    model_class: ClassVar[str] = "Qwen3NextForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "partial_rotary_factor": 0.25,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10,
        "num_experts": 512,
        "norm_topk_prob": True,
        "mlp_only_layers": None,
        "layer_types": None,
        "full_attention_interval": 4,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    dropped: ClassVar[Sequence[Dropped]] = (ROTARY_BUFFERS,)
    rope_no_effect: ClassVar[Mapping[str, str]] = {}
    """Keys of ``rope_parameters`` that change nothing, with the reason."""

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        return (MTP_TENSORS,)

    def spec(self, config: Config) -> dict[str, Any]:
        length, layers = config.take("max_position_embeddings"), config.take("num_hidden_layers")
        head_dim = config.take("head_dim")
        config.expect("attention_bias", False, why="asks for biases beside the gate, which archc has not")
        config.expect("attn_output_gate", True, why="asks for attention without its gate; this family has one")
        config.expect("use_sliding_window", False, None, why="asks for windows that this family has not")
        config.ignore("sliding_window", "max_window_layers", why="no layer slides")
        config.ignore(
            "mamba_ssm_dtype", why="of the state, which archc keeps in float32 unless the cache says otherwise"
        )
        mixers = {
            "gdn": {
                "kind": "gated_deltanet",
                "num_key_heads": config.take("linear_num_key_heads"),
                "num_value_heads": config.take("linear_num_value_heads"),
                "key_head_dim": config.take("linear_key_head_dim"),
                "value_head_dim": config.take("linear_value_head_dim"),
                "conv_kernel": config.take("linear_conv_kernel_dim"),
            },
            "attn": {
                "kind": "gqa",
                "num_heads": config.take("num_attention_heads"),
                "num_kv_heads": config.take("num_key_value_heads"),
                "head_dim": head_dim,
                "qk_norm": "head",
                "output_gate": True,
            },
        }
        names = full_every(config, layers)
        ffn_names, ffns = self.feed_forwards(config, layers)
        further = self.further_layers(config)
        return {
            "tokenizer": tokenizer(config),
            "embedding": {
                "hidden_size": config.take("hidden_size"),
                "tie_word_embeddings": bool(config.take("tie_word_embeddings")),
            },
            "position": rope(config, head_dim=head_dim, length=length, no_effect=self.rope_no_effect),
            "norm": {"kind": "rms_norm", "eps": config.take("rms_norm_eps"), "weight_offset": 1.0},
            "max_position_embeddings": length,
            "mixers": {name: mixer for name, mixer in mixers.items() if name in names},
            "ffns": ffns,
            "stack": stack(names, ffn_names),
            **({"mtp": {"num_layers": further, "mixer": "attn", "ffn": ffn_names[-1]}} if further else {}),
        }

    def feed_forwards(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        """(a feed-forward a layer, the feed-forwards by name)."""
        moe = shared_and_routed(config)
        moe["router"] = {"scoring_func": "softmax", "norm_topk_prob": bool(config.take("norm_topk_prob"))}
        dense = {"kind": "swiglu", "intermediate_size": config.take("intermediate_size")}
        return dense_or_moe(config, layers, dense, moe)

    def further_layers(self, config: Config) -> int:
        """Layers that predict further tokens; the published configuration does not say that its file has one."""
        return config.take("num_nextn_predict_layers", default=0) or 0

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*self.but_experts(graph, config), *EXPERTS)

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {"stacked experts": (*self.but_experts(graph, config), *STACKED)}

    def but_experts(self, graph: Graph, config: Mapping[str, Any]) -> tuple[Rule, ...]:
        """All rules but those of the routed experts."""
        delta, full = delta_layers(graph)
        stated = {**self.defaults, **config}
        return (
            *ENDS,
            *PRE_NORMS,
            *at(delta, (*DELTA, *self.inputs(stated["linear_num_key_heads"]))),
            *at(full, gated_attention(stated["num_attention_heads"])),
            *FEED_FORWARDS,
        )

    def inputs(self, heads: int) -> tuple[Rule, ...]:
        """What the delta rule is fed: rows [q | k | v of its value heads | gate of the same] a key head."""
        there = (f"{_DELTA}.in_proj_qkvz.weight", f"{_DELTA}.in_proj_ba.weight")
        return (
            rule(there[0], *(f"{_OURS}.{name}.weight" for name in _INSIDE), groups=heads),
            rule(there[1], f"{_OURS}.b_proj.weight", f"{_OURS}.a_proj.weight", groups=heads),
        )


def shared_and_routed(config: Config) -> dict[str, Any]:
    """Qwen's experts, one of which is always on behind a gate of its own."""
    moe = routed(config)
    width = config.take("shared_expert_intermediate_size")
    shared: dict[str, Any] = {"num_shared_experts": 1, "shared_gate": True}
    if width != moe["intermediate_size"]:
        shared["shared_intermediate_size"] = width
    # The width of one expert after how many there are, as the published specs have it.
    last = moe.pop("intermediate_size")
    return {**moe, **shared, "intermediate_size": last}


def full_every(config: Config, layers: int) -> list[str]:
    """``layer_types``, or one attention layer every ``full_attention_interval``."""
    types = stated_types(config, layers, "linear_attention", "full_attention")
    if types is not None:
        config.ignore("full_attention_interval", why="layer_types says it")
        return ["attn" if kind == "full_attention" else "gdn" for kind in types]
    interval = config.take("full_attention_interval")
    return ["gdn" if (layer + 1) % interval else "attn" for layer in range(layers)]


def gated_attention(heads: int) -> tuple[Rule, ...]:
    """Attention whose query matrix holds the gate, too: rows [q | gate] a head."""
    query = "model.layers.{i}.self_attn.q_proj"
    usual = tuple(entry for entry in ATTENTION if not entry.theirs.startswith(query))
    gated = rule(f"{query}.weight", f"{_OURS}.q_proj.weight", f"{_OURS}.gate_proj.weight", groups=heads)
    return (*usual, *QK_NORMS, gated)
