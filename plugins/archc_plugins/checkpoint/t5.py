"""T5: an encoder, a decoder and one table; biases by distance in the first layer's name, for all layers of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, Naming, Rule, rule
from archc.graph.graph import Graph

_ENCODER_CLASS = "T5EncoderModel"
_FLAG, _SCALED = "tie_word_embeddings", "scale_decoder_outputs"
_GATED = {"gelu_tanh": "geglu", "gelu": "geglu", "silu": "swiglu"}


class T5(Checkpoint):
    """T5ForConditionalGeneration, and the encoder of T5EncoderModel.

    transformers 5 ties the head unless the file holds another one, whatever the flag says; the flag says whether logits are
    scaled, and newer files say that apart.
    """

    model_class: ClassVar[str] = "T5ForConditionalGeneration"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_decoder_layers": None,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        _FLAG: True,
    }
    dropped: ClassVar[Sequence[Dropped]] = (
        Dropped(
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
            "of attention to the encoder, which has no distances",
        ),
    )
    aliases: ClassVar[Mapping[str, str]] = {
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    }
    other_namings: ClassVar[Sequence[Naming]] = (
        (("shared.", "encoder.embed_tokens."),),
        (("shared.", "decoder.embed_tokens."),),
    )

    def untied(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {_SCALED: config.get(_FLAG) is not False, **super().untied(config)}

    def spec(self, config: Config) -> dict[str, Any]:
        alone = config.data.get("architectures") == [_ENCODER_CLASS]
        heads = config.take("num_heads", "num_attention_heads")
        config.expect("is_decoder", False, why="asks for a decoder without an encoder")
        if not alone:
            config.expect("is_encoder_decoder", True, why="asks for one stack, and this family has two")
        config.ignore("dropout_rate", "classifier_dropout", why="training only")
        config.ignore("initializer_factor", why="of weights that are not loaded")
        config.ignore("n_positions", why="distances have no end")
        config.ignore("task_specific_params", "output_past", "prefix", "max_length", why="of the interface")
        kind, ffn = _feed_forward(config)
        layers = config.take("num_layers", "num_hidden_layers")
        stack = {"block": "pre_norm", "mixer": "self", "ffn": kind}
        mixer = {
            "kind": "gqa",
            "num_heads": heads,
            "num_kv_heads": heads,
            "head_dim": config.take("d_kv", "head_dim"),
            "softmax_scale": 1,
        }
        embedding: dict[str, Any] = {"hidden_size": config.take("d_model", "hidden_size")}
        found = {
            "tokenizer": _tokenizer(config),
            "embedding": embedding,
            "position": {
                "kind": "relative_bias",
                "num_buckets": config.take("relative_attention_num_buckets"),
                "max_distance": config.take("relative_attention_max_distance"),
            },
            "norm": {"kind": "rms_norm", "eps": config.take("layer_norm_epsilon")},
            "mixers": {"self": mixer},
            "ffns": {kind: ffn},
            "encoder": {"num_layers": layers, **stack},
        }
        if alone:
            config.ignore(_FLAG, _SCALED, "num_decoder_layers", why="of a decoder, and this is an encoder alone")
            return found
        decoder = config.take("num_decoder_layers", default=None)
        is_tied = bool(config.take(_FLAG))
        is_scaled = bool(config.take(_SCALED, default=is_tied))
        embedding[_FLAG] = is_tied
        found["mixers"]["to_encoder"] = {"extends": "self", "position": "none"}
        found["decoder"] = {
            "num_layers": layers if decoder is None else decoder,
            "block": "pre_norm",
            "mixer": "self",
            "cross": "to_encoder",
            "ffn": kind,
        }
        if is_scaled:
            found["head"] = {"kind": "lm", "logit_scale": "1/sqrt(hidden_size)"}
        return found

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        is_gated = any(name.endswith(".gate_proj.weight") for name in graph.params())
        return (
            rule("shared.weight", "embed_tokens.weight"),
            rule("lm_head.weight", "lm_head.weight"),
            *_stack_rules("encoder", "encoder." if graph.reads_encoder else "", ("mixer", "ffn"), is_gated=is_gated),
            *_stack_rules("decoder", "decoder.", ("mixer", "cross", "ffn"), is_gated=is_gated),
        )


def _tokenizer(config: Config) -> dict[str, Any]:
    """With the id from which the decoder starts, where that is not the one for padding."""
    found = tokenizer(config)
    start = config.take("decoder_start_token_id", default=None)
    if start is not None and start != found.get("bos_token_id", found.get("pad_token_id")):
        found["bos_token_id"] = start
    return found


def _feed_forward(config: Config) -> tuple[str, dict[str, Any]]:
    """(its name, its keys): what ``feed_forward_proj`` says, unless newer files say it apart."""
    stated = str(config.take("feed_forward_proj"))
    first, _, last = stated.rpartition("-")
    # What is called gelu behind a gate is the one by tanh, in every version.
    is_gated = bool(config.take("is_gated_act", default=first == "gated"))
    if not config.has("dense_act_fn"):
        config.state("dense_act_fn", "gelu_new" if stated == "gated-gelu" else last, why="feed_forward_proj says it")
    known = activation(config, "dense_act_fn")
    width = config.take("d_ff")
    if not is_gated:
        return "mlp", {"kind": "mlp", "intermediate_size": width, "activation": known}
    if known not in _GATED:
        config.refuse("feed_forward_proj", "is no activation of a gate that is known")
    return "glu", {"kind": _GATED.get(known, "swiglu"), "intermediate_size": width} | (
        {"activation": known} if known.startswith("gelu") else {}
    )


def _stack_rules(theirs: str, ours: str, branches: Sequence[str], *, is_gated: bool) -> list[Rule]:
    """A stack's tensors; its layers hold one branch after the other, each behind its norm."""
    found = [
        rule(f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{ours}relative_bias_0.weight"),
        rule(f"{theirs}.final_layer_norm.weight", f"{ours}norm.weight"),
    ]
    for number, branch in enumerate(branches):
        there, here = f"{theirs}.block.{{i}}.layer.{number}", f"{ours}layers.{{i}}.{branch}"
        found.append(rule(f"{there}.layer_norm.weight", f"{here}_norm.weight"))
        if branch == "ffn":
            names = {**({"wi_0": "gate", "wi_1": "up"} if is_gated else {"wi": "up"}), "wo": "down"}
            found += [rule(f"{there}.DenseReluDense.{a}.weight", f"{here}.{b}_proj.weight") for a, b in names.items()]
        else:
            kind = "SelfAttention" if branch == "mixer" else "EncDecAttention"
            found += [rule(f"{there}.{kind}.{name}.weight", f"{here}.{name}_proj.weight") for name in "qkvo"]
    return found
