"""Llama 4 (text): chunked layers that turn, layers without positions whose queries grow, experts that weigh their input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, rope, stack, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint, Nested
from archc.checkpoint.rules import Dropped, LeftOut, Naming, Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.gemma import TOWERED
from archc_plugins.checkpoint.llama import ATTENTION, ENDS, PRE_NORMS, ROTARY_BUFFERS

CHUNKED, FULL = "chunked_attention", "full_attention"
_FFN = "model.layers.{i}.feed_forward"
FFNS: tuple[Rule, ...] = (
    *(rule(f"{_FFN}.{name}_proj.weight", f"layers.{{i}}.ffn.{name}_proj.weight") for name in ("gate", "up", "down")),
    *(
        rule(f"{_FFN}.shared_expert.{name}_proj.weight", f"layers.{{i}}.ffn.shared_experts.{name}_proj.weight")
        for name in ("gate", "up", "down")
    ),
    rule(f"{_FFN}.router.weight", "layers.{i}.ffn.router.weight"),
    rule(
        f"{_FFN}.experts.gate_up_proj",
        "layers.{i}.ffn.experts.gate_proj",
        "layers.{i}.ffn.experts.up_proj",
        axis=1,
        transposed=True,
    ),
    rule(f"{_FFN}.experts.down_proj", "layers.{i}.ffn.experts.down_proj", axis=1, transposed=True),
)


class Llama4Text(Checkpoint):
    """Llama4ForCausalLM."""

    model_class: ClassVar[str] = "Llama4ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 4096 * 32,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "num_experts_per_tok": 1,
        "num_local_experts": 16,
        "moe_layers": None,
        "interleave_moe_layer_step": 1,
        "use_qk_norm": True,
        "rope_theta": 500000.0,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "layer_types": None,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "attention_bias": False,
    }
    dropped: ClassVar[Sequence[Dropped]] = (ROTARY_BUFFERS,)

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, layers = config.take("hidden_size"), config.take("num_hidden_layers")
        length, head_dim = config.take("max_position_embeddings"), config.take("head_dim")
        biases = {"qkv_bias": True, "o_bias": True} if config.take("attention_bias") else {}
        attention = {
            "kind": "gqa",
            "num_heads": config.take("num_attention_heads"),
            "num_kv_heads": config.take("num_key_value_heads"),
            "head_dim": head_dim,
            **biases,
        }
        names, mixers = _mixers(config, layers, attention)
        kinds, ffns = _ffns(config, layers)
        config.ignore("for_llm_compressor", why="how it was quantised")
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": hidden, "tie_word_embeddings": bool(config.take("tie_word_embeddings"))},
            "position": rope(config, head_dim=head_dim, length=length, interleaved=True),
            "norm": {"kind": "rms_norm", "eps": config.take("rms_norm_eps")},
            "max_position_embeddings": length,
            "mixers": mixers,
            "ffns": ffns,
            "stack": stack(names, kinds),
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*ENDS, *PRE_NORMS, *ATTENTION, *FFNS)


class Llama4(Nested):
    """The text side of Llama4ForConditionalGeneration."""

    model_class: ClassVar[str] = "Llama4ForConditionalGeneration"
    text: ClassVar[type[Checkpoint]] = Llama4Text
    defaults: ClassVar[Mapping[str, Any]] = {"tie_word_embeddings": False}
    other_namings: ClassVar[Sequence[Naming]] = TOWERED
    towers: ClassVar[Sequence[LeftOut]] = (
        LeftOut("vision_model.*", "the vision tower"),
        LeftOut("multi_modal_projector.*", "what brings images to the text model"),
    )
    outer_no_effect: ClassVar[Mapping[str, str]] = {
        "vision_config": "of the vision tower, which is left out",
        **dict.fromkeys(
            (
                "boi_token_index",
                "eoi_token_index",
                "image_token_index",
                "boi_token_id",
                "eoi_token_id",
                "image_token_id",
            ),
            "of images among the text",
        ),
    }


def _mixers(config: Config, layers: int, attention: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """(a mixer a layer, the mixers by name): a layer turns or not, and sees its chunk or everything."""
    turning = config.take("no_rope_layers")
    every = config.take("no_rope_layer_interval")
    if not turning:
        turning = [int((layer + 1) % every != 0) for layer in range(layers)]
    chunk = config.take("attention_chunk_size")
    types = config.take("layer_types") or [CHUNKED if turns and chunk is not None else FULL for turns in turning]
    if len(types) != layers or not set(types) <= {CHUNKED, FULL}:
        config.refuse("layer_types", f"should name {CHUNKED} or {FULL} once a layer, {layers} in all")
        types = [FULL] * layers
    if len(turning) < layers:
        config.refuse("no_rope_layers", f"should have an entry a layer, {layers} in all")
        turning = [1] * layers
    turns_too = {"qk_norm": "unit"} if config.take("use_qk_norm") else {}
    still = {"position": "none"}
    scale, floor = config.take("attn_scale"), config.take("floor_scale")
    if config.take("attn_temperature_tuning"):
        still |= {"query_temperature": {"scale": scale, "floor": floor}}
    names: list[str] = []
    mixers: dict[str, Any] = {}
    for turns, kind in zip(turning, types, strict=False):
        name = {(True, True): "chunked", (True, False): "full", (False, True): "chunked_nope", (False, False): "nope"}[
            bool(turns), kind == CHUNKED
        ]
        names.append(name)
        more = {"attention_chunk_size": chunk} if kind == CHUNKED else {}
        mixers.setdefault(name, {**attention, **(turns_too if turns else still), **more})
    return names, mixers


def _ffns(config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
    """(an ffn a layer, the ffns by name)."""
    every, stated = config.take("interleave_moe_layer_step"), config.take("moe_layers")
    sparse = set(range(every - 1, layers, every) if stated is None else stated)
    function = activation(config, "hidden_act")
    gate = {} if function == "silu" else {"activation": function}
    width, dense = config.take("intermediate_size"), config.take("intermediate_size_mlp")
    experts, chosen = config.take("num_local_experts"), config.take("num_experts_per_tok")
    moe = {
        "kind": "moe",
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "num_shared_experts": 1,
        "intermediate_size": width,
        **({"expert": {"kind": "swiglu", **gate}} if gate else {}),
        "router": {"scoring_func": "sigmoid", "norm_topk_prob": False, "weight_on": "input"},
    }
    names = ["moe" if layer in sparse else "mlp" for layer in range(layers)]
    known = {"mlp": {"kind": "swiglu", "intermediate_size": dense, **gate}, "moe": moe}
    return names, {name: known[name] for name in known if name in names}
