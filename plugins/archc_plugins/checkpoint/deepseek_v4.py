"""DeepSeek-V4: compressed attention of three kinds, hyper-connections, experts by token id in the first layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from archc.checkpoint.common import rope, silu_only, stack, stated_types, tokenizer, without_defaults
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import LeftOut, Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.mixtures import FURTHER_TOKENS, MTP_TENSORS, W1_W3_W2, experts, placed, stacked_experts

KINDS = {
    "sliding_attention": "window",
    "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
}
"""Layer types there and what the spec calls their mixers."""
RATIOS = {0: "window", 4: "csa", 128: "hca"}
"""The same by the numbers of older files."""
LAYER: tuple[tuple[str, str, str], ...] = (
    ("attn_norm.weight", "input_layernorm.weight", "mixer_norm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight", "ffn_norm.weight"),
    *(
        (f"hc_{theirs}_{part}", f"{theirs}_hc.{part}", f"{ours}_hc.{part}")
        for theirs, ours in (("attn", "mixer"), ("ffn", "ffn"))
        for part in ("fn", "base", "scale")
    ),
    ("attn.attn_sink", "self_attn.sinks", "mixer.attention.sinks"),
    ("attn.wq_a.weight", "self_attn.q_a_proj.weight", "mixer.q_a_proj.weight"),
    ("attn.q_norm.weight", "self_attn.q_a_norm.weight", "mixer.q_a_norm.weight"),
    ("attn.wq_b.weight", "self_attn.q_b_proj.weight", "mixer.q_b_proj.weight"),
    ("attn.wkv.weight", "self_attn.kv_proj.weight", "mixer.kv_proj.weight"),
    ("attn.wo_a.weight", "self_attn.o_a_proj.weight", "mixer.o_a_proj.weight"),
    ("attn.wo_b.weight", "self_attn.o_b_proj.weight", "mixer.o_b_proj.weight"),
    *(
        (f"attn.{theirs}.{old}", f"self_attn.{scope}.{new}", f"mixer.{ours}.{here}")
        for theirs, scope, ours in (
            ("compressor", "compressor", "compressor"),
            ("indexer.compressor", "compressor.indexer", "indexer"),
        )
        for old, new, here in (
            ("wkv.weight", "kv_proj.weight", "kv_proj.weight"),
            ("wgate.weight", "gate_proj.weight", "gate_proj.weight"),
            ("ape", "position_bias", "entries.position_bias"),
            ("norm.weight", "kv_norm.weight", "entries.norm_weight"),
        )
    ),
    ("attn.indexer.wq_b.weight", "self_attn.compressor.indexer.q_b_proj.weight", "mixer.indexer.q_b_proj.weight"),
    (
        "attn.indexer.weights_proj.weight",
        "self_attn.compressor.indexer.scorer.weights_proj.weight",
        "mixer.indexer.weights_proj.weight",
    ),
    ("ffn.gate.weight", "mlp.gate.weight", "ffn.router.weight"),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias", "ffn.router.e_score_correction_bias"),
    ("ffn.gate.tid2eid", "mlp.gate.tid2eid", "ffn.router.table"),
    *(
        (f"ffn.shared_experts.{old}.weight", f"mlp.shared_experts.{new}.weight", f"ffn.shared_experts.{new}.weight")
        for old, new in zip(W1_W3_W2, ("gate_proj", "up_proj", "down_proj"), strict=True)
    ),
)
"""(name in published files, name in transformers' module, name here) behind a layer's number."""
HEAD_PARTS = ("fn", "base", "scale")


def _published(prefix: str, kv_norm: str, table: str, hc_head: str) -> tuple[Rule, ...]:
    """Names of published files, which transformers takes back but for a few."""
    layer = f"{prefix}layers.{{i}}"
    return (
        rule(f"{prefix}{table}.weight", "embed_tokens.weight"),
        rule(f"{prefix}norm.weight", "norm.weight"),
        rule("head.weight", "lm_head.weight"),
        *(rule(f"{prefix}{hc_head}_{part}", f"hc_head.{part}") for part in HEAD_PARTS),
        *(rule(f"{layer}.{theirs}", f"layers.{{i}}.{ours}") for theirs, _, ours in LAYER),
        rule(f"{layer}.attn.{kv_norm}.weight", "layers.{i}.mixer.kv_norm.weight"),
        *experts(f"{layer}.ffn.experts", W1_W3_W2),
    )


AS_MODULE: tuple[Rule, ...] = (
    rule("model.embed_tokens.weight", "embed_tokens.weight"),
    rule("model.norm.weight", "norm.weight"),
    rule("lm_head.weight", "lm_head.weight"),
    *(rule(f"model.hc_head.hc_{part}", f"hc_head.{part}") for part in HEAD_PARTS),
    *(rule(f"model.layers.{{i}}.{theirs}", f"layers.{{i}}.{ours}") for _, theirs, ours in LAYER),
    rule("model.layers.{i}.self_attn.kv_norm.weight", "layers.{i}.mixer.kv_norm.weight"),
    *stacked_experts("model.layers.{i}.mlp.experts"),
)
"""Names of transformers' module, all experts in one tensor."""


class DeepseekV4(Checkpoint):
    """DeepseekV4ForCausalLM. Layers that predict further tokens are no part of the class."""

    model_class: ClassVar[str] = "DeepseekV4ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 129280,
        "hidden_size": 4096,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 43,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "q_lora_rank": 1024,
        "num_experts_per_tok": 6,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "scoring_func": "sqrtsoftplus",
        "routed_scaling_factor": 1.5,
        "max_position_embeddings": 1048576,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "layer_types": None,
        "mlp_layer_types": None,
        "compress_rates": None,
        "partial_rotary_factor": None,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "swiglu_limit": 10.0,
        "sliding_window": 128,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "mlp_bias": False,
    }

    def spec(self, config: Config) -> dict[str, Any]:
        length, layers = config.take("max_position_embeddings"), config.take("num_hidden_layers")
        silu_only(config)
        config.expect("num_key_value_heads", 1, why="is not 1; all heads read one key, which is the value too")
        config.expect("n_shared_experts", 1, why="is not the one shared expert of this family")
        config.expect("mlp_bias", False, why="asks for biases that routed experts of this family have not")
        config.expect("topk_method", "noaux_tc", None, why="is not how this family chooses experts, noaux_tc")
        config.ignore("attention_bias", why="this family's attention has no biases, whatever is said here")
        config.ignore("norm_topk_prob", why="this family always divides the chosen weights by their sum")
        config.ignore("num_nextn_predict_layers", "num_mtp_layers", why=FURTHER_TOKENS)
        config.ignore("expert_dtype", why="of the stored tensors, not of the architecture")
        mixers, hashes = self._mixer_names(config, layers), self._ffn_names(config, layers)
        main, compress, dim = self._positions(config, length)
        eps = config.take("rms_norm_eps")
        block = without_defaults(
            {
                "kind": "hyper_connections",
                "num_streams": config.take("hc_mult"),
                "sinkhorn_iters": config.take("hc_sinkhorn_iters"),
                "eps": config.take("hc_eps"),
                "norm_eps": eps,
            },
            sinkhorn_iters=20,
            eps=1e-6,
            norm_eps=1e-6,
        )
        return {
            "tokenizer": tokenizer(config),
            "embedding": {
                "hidden_size": config.take("hidden_size"),
                "tie_word_embeddings": bool(config.take("tie_word_embeddings")),
            },
            "position": main if "window" in mixers else compress,
            "norm": {"kind": "rms_norm", "eps": eps},
            "max_position_embeddings": length,
            "mixers": placed(mixers, self._mixers(config, dim, compress)),
            "ffns": placed(hashes, self._ffns(config)),
            "stack": stack(mixers, hashes, block=block),
        }

    def _mixer_names(self, config: Config, layers: int) -> list[str]:
        """``window``, ``csa`` or ``hca`` for every layer."""
        types = stated_types(config, layers, *KINDS)
        ratios = config.take("compress_ratios", default=None)
        if types is not None:
            config.ignore("compress_ratios", why="layer_types says it")
            return [KINDS[kind] for kind in types]
        if ratios is None:
            alternating = ["csa" if layer % 2 else "hca" for layer in range(max(layers - 2, 0))]
            return ["hca"] * min(layers, 2) + alternating
        # Published lists go on over the layers that predict further tokens.
        names = [RATIOS.get(ratio) for ratio in ratios[:layers]]
        if len(names) != layers or None in names:
            config.refuse("compress_ratios", f"should be {layers} of {', '.join(map(str, RATIOS))}, one a layer")
        return [name or "hca" for name in (*names, *[None] * (layers - len(names)))]

    def _ffn_names(self, config: Config, layers: int) -> list[str]:
        """``hash`` or ``moe`` for every layer."""
        types = stated_types(config, layers, "hash_moe", "moe", key="mlp_layer_types")
        if types is not None:
            config.ignore("num_hash_layers", why="mlp_layer_types says it")
            return ["hash" if kind == "hash_moe" else "moe" for kind in types]
        count = config.take("num_hash_layers", default=3)
        return ["hash" if layer < count else "moe" for layer in range(layers)]

    def _positions(self, config: Config, length: int) -> tuple[dict[str, Any], dict[str, Any], int]:
        """(rope of windows, rope of layers with entries, channels that turn)."""
        width, share = config.take("head_dim"), config.take("partial_rotary_factor")
        if share is None:
            share = (config.take("qk_rope_head_dim") / width) if config.has("qk_rope_head_dim") else 64 / 512
        config.ignore("qk_rope_head_dim", why="partial_rotary_factor says it")
        dim = int(width * share)
        stated = config.data.get("rope_parameters")
        if isinstance(stated, Mapping) and {"main", "compress"} <= set(cast("Mapping[str, Any]", stated)):
            found = [
                rope(
                    config,
                    head_dim=0,
                    length=length,
                    of=of,
                    theta_names=(theta,),
                    share_names=(),
                    interleaved=True,
                    trailing=True,
                )
                for of, theta in (("main", "rope_theta"), ("compress", "compress_rope_theta"))
            ]
            for position in found:
                if int(width * position.pop("partial_rotary_factor", 1.0)) != dim:
                    config.refuse(
                        "rope_parameters", f"should turn {dim} channels of a head, as partial_rotary_factor says"
                    )
            return found[0], found[1], dim
        main = {"kind": "rope", "theta": float(config.take("rope_theta")), "interleaved": True, "trailing": True}
        compress = rope(
            config,
            head_dim=0,
            length=length,
            theta_names=("compress_rope_theta",),
            share_names=(),
            interleaved=True,
            trailing=True,
        )
        # One flat mapping scales the layers with entries; its own base and share are those of no layer.
        compress |= {"theta": float(config.take("compress_rope_theta"))}
        compress.pop("partial_rotary_factor", None)
        if compress.get("scaling", {}).get("kind") == "yarn":
            compress["scaling"].setdefault("attention_factor", 1.0)
        return main, compress, dim

    def _mixers(self, config: Config, dim: int, compress: dict[str, Any]) -> dict[str, Any]:
        window = {
            "kind": "compressed_attention",
            "num_heads": config.take("num_attention_heads"),
            "head_dim": config.take("head_dim"),
            "qk_rope_head_dim": dim,
            **{name: config.take(name) for name in ("q_lora_rank", "o_groups", "o_lora_rank", "sliding_window")},
        }
        rates = {"csa": 4, "hca": 128}
        stated: Mapping[str, int] = config.take("compress_rates") or {}
        for name, ours in KINDS.items():
            if ours in rates:
                rates[ours] = config.take(f"compress_rate_{ours}", default=stated.get(name, rates[ours]))
        topk = {"num_heads": "index_n_heads", "head_dim": "index_head_dim", "topk": "index_topk"}
        indexer = {ours: config.take(theirs) for ours, theirs in topk.items()}
        return {
            "window": window,
            "csa": {
                **window,
                "compress_ratio": rates["csa"],
                "overlap": True,
                "indexer": indexer,
                "position": compress,
            },
            "hca": {**window, "compress_ratio": rates["hca"], "position": compress},
        }

    def _ffns(self, config: Config) -> dict[str, Any]:
        score = config.take("scoring_func")
        if score not in ("sqrtsoftplus", "softmax", "sigmoid"):
            config.refuse("scoring_func", "is none of sqrtsoftplus, softmax and sigmoid")
        router: dict[str, Any] = {"scoring_func": score, "norm_topk_prob": True}
        factor = float(config.take("routed_scaling_factor"))
        if factor != 1.0:
            router["routed_scaling_factor"] = factor
        moe: dict[str, Any] = {
            "kind": "moe",
            "num_experts": config.take("n_routed_experts", "num_local_experts"),
            "num_experts_per_tok": config.take("num_experts_per_tok"),
            "num_shared_experts": 1,
            "intermediate_size": config.take("moe_intermediate_size", "intermediate_size"),
            "expert": {"kind": "clamped_swiglu", "limit": float(config.take("swiglu_limit"))},
        }
        return {
            "hash": {**moe, "router": {"kind": "token_table", **router}},
            "moe": {**moe, "router": {**router, "correction_bias": True}},
        }

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        return (MTP_TENSORS,)

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return _published("", "kv_norm", "embed", "hc_head")

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {
            "as transformers saves it": _published("model.", "norm", "embed_tokens", "hc_head.hc"),
            "as transformers' module": AS_MODULE,
        }
