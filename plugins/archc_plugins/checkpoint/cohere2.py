"""Command R7B (Cohere 2): both branches from one norm without a bias; layers that slide turn, the others have no positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, rope, stack, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, Rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import ATTENTION, ENDS, MLP, PRE_NORMS, ROTARY_BUFFERS

SLIDING, FULL = "sliding_attention", "full_attention"
# What published files state although the class has only this: (key, the one value that is computed).
_FIXED = (
    ("use_qk_norm", False),
    ("use_parallel_block", True),
    ("use_gated_activation", True),
    ("position_embedding_type", "rope_gptj"),
    ("rotary_pct", 1.0),
    ("order_of_interleaved_layers", "local_attn_first"),
)


class Cohere2(Checkpoint):
    """Cohere2ForCausalLM."""

    model_class: ClassVar[str] = "Cohere2ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 256000,
        "hidden_size": 8192,
        "intermediate_size": 22528,
        "logit_scale": 0.0625,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 0,
        "bos_token_id": 5,
        "eos_token_id": 255001,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    }
    dropped: ClassVar[Sequence[Dropped]] = (ROTARY_BUFFERS,)

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, heads = config.take("hidden_size"), config.take("num_attention_heads")
        length, layers = config.take("max_position_embeddings"), config.take("num_hidden_layers")
        head_dim = config.take("head_dim", default=None) or hidden // heads
        types = layer_types(config, layers)
        tied = bool(config.take("tie_word_embeddings", "use_embedding_sharing"))
        biases = {"qkv_bias": True, "o_bias": True} if config.take("attention_bias") else {}
        mixer = {
            "kind": "gqa",
            "num_heads": heads,
            "num_kv_heads": config.take("num_key_value_heads", default=None) or heads,
            "head_dim": head_dim,
            **biases,
        }
        position = rope(config, head_dim=head_dim, length=length, interleaved=True)
        mixers: dict[str, Any] = {}
        if SLIDING in types:
            mixers["local"] = {**mixer, "sliding_window": config.take("sliding_window")}
        if FULL in types:
            base = {"extends": "local", "sliding_window": None} if mixers else mixer
            mixers["global"] = {**base, "position": "none"}
        for name, value in _FIXED:
            config.expect(name, value, why=f"is not computed by the model class, which has {value!r}")
        config.ignore("layer_switch", why="sliding_window_pattern says it")
        config.ignore("cache_implementation", "use_parallel_embedding", why="how transformers computes, not what")
        scale = config.take("logit_scale")
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": hidden, "tie_word_embeddings": tied},
            "position": position,
            "norm": {"kind": "layer_norm", "eps": config.take("layer_norm_eps"), "bias": False},
            "max_position_embeddings": length,
            "mixers": mixers,
            "ffns": {"mlp": _mlp(config)},
            "stack": stack(
                ["local" if kind == SLIDING else "global" for kind in types],
                "mlp",
                block={"kind": "parallel", "shared_norm": True},
            ),
            **({} if scale == 1 else {"head": {"kind": "lm", "logit_scale": scale}}),
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*ENDS, PRE_NORMS[0], *ATTENTION, *MLP)


def _mlp(config: Config) -> dict[str, Any]:
    function = activation(config, "hidden_act")
    found = {"kind": "swiglu", "intermediate_size": config.take("intermediate_size")}
    return found if function == "silu" else {**found, "activation": function}


def layer_types(config: Config, layers: int) -> list[str]:
    """A layer type a layer: those stated, or full attention in every last layer of ``sliding_window_pattern``.

    Other types are refused, and so is a list of another length.
    """
    stated = config.take("layer_types", default=None)
    names = [name for name in ("sliding_window_pattern", "_sliding_window_pattern") if name in config.data]
    if stated is None:
        every = config.take("sliding_window_pattern", "_sliding_window_pattern")
        return [SLIDING if (layer + 1) % every else FULL for layer in range(layers)]
    config.ignore(*names, why="layer_types says it")
    if len(stated) != layers or not set(stated) <= {SLIDING, FULL}:
        config.refuse("layer_types", f"should name {SLIDING} or {FULL} once a layer, {layers} in all")
        return [FULL] * layers
    return list(stated)
