"""Kimi K3, the text side: Kimi Linear's mixers, gated; experts in a narrower width; residuals that attend to earlier blocks.

transformers has no class of it (5.24), so a configuration has no defaults here: what counts must be stated. Names and
shapes of tensors are those of the released files, whose experts are packed in four bits; unpacked ones are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import stack, tokenizer, without_defaults
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint, Nested
from archc.checkpoint.rules import LeftOut, Naming, Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.deepseek import LATENT, latent_attention
from archc_plugins.checkpoint.gemma import TOWERED
from archc_plugins.checkpoint.kimi_linear import DELTA, KimiLinear
from archc_plugins.checkpoint.llama import ENDS, MLP, PRE_NORMS
from archc_plugins.checkpoint.mixtures import W1_W3_W2, experts, placed, router, shared_expert

_LAYER, _MOE = "model.layers.{i}", "model.layers.{i}.block_sparse_moe"
_LOG_DECAY = f"{_LAYER}.self_attn.A_log"
_PADDED_ROWS = 128
"""Entries of the log decay come in this multiple in the released files."""

_RULES: tuple[Rule, ...] = (
    *ENDS,
    *PRE_NORMS,
    *LATENT,
    *(entry for entry in DELTA if entry.theirs != _LOG_DECAY),
    rule(_LOG_DECAY, "layers.{i}.mixer.forget_gate.A_log", row_multiple=_PADDED_ROWS),
    rule(f"{_LAYER}.self_attn.g_proj.weight", "layers.{i}.mixer.g_proj.weight"),
    rule(f"{_LAYER}.self_attn.g_proj.weight", "layers.{i}.mixer.gate_proj.weight"),
    *MLP,
    *router(f"{_MOE}.gate"),
    *shared_expert(f"{_MOE}.shared_experts"),
    *experts(f"{_MOE}.experts", W1_W3_W2),
    rule(f"{_MOE}.routed_expert_down_proj.weight", "layers.{i}.ffn.latent_down_proj.weight"),
    rule(f"{_MOE}.routed_expert_up_proj.weight", "layers.{i}.ffn.latent_up_proj.weight"),
    rule(f"{_MOE}.routed_expert_norm.weight", "layers.{i}.ffn.latent_norm.weight"),
    *(
        rule(f"{there}_{part}.weight", f"{here}.{part}.weight")
        for there, here in (
            (f"{_LAYER}.self_attention_res", "layers.{i}.mixer_res"),
            (f"{_LAYER}.mlp_res", "layers.{i}.ffn_res"),
            ("model.output_attn_res", "output_res"),
        )
        for part in ("norm", "proj")
    ),
)
_RUNNING = (
    "kda_mode",
    "kda_unpad_inputs",
    "kda_use_fused_gate",
    "kda_chunk_impl",
    "kda_use_qk_l2norm_in_kernel",
    "kda_disable_recompute",
    "kda_conv_backend",
    "kda_transpose_state_layout",
    "situ_backend",
    "attn_res_triton",
)


class KimiK3Text(KimiLinear):
    """KimiK3ForCausalLM, as the text model calls itself in the files of the whole."""

    model_class: ClassVar[str] = "KimiK3ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {"attention_bias": False, "layer_types": None, "mlp_layer_types": None}

    def spec(self, config: Config) -> dict[str, Any]:
        layers = config.take("num_hidden_layers")
        config.expect("mla_use_nope", True, why="asks for a rotation that this family has not")
        config.ignore("rope_theta", "rope_scaling", "rope_parameters", why="nothing turns")
        config.expect("tie_word_embeddings", False, None, why="asks for one table; this family has a head of its own")
        config.ignore(*_RUNNING, why="how it is computed, not what")
        names, delta = self._schedule(config, layers)
        latent = latent_attention(config)
        if config.take("mla_use_output_gate", default=False):
            latent["output_gate"] = True
        gated = self._gated(config)
        ffn_names = self._dense_layers(config, layers)
        ffns = {
            "dense": {"kind": "swiglu", "intermediate_size": config.take("intermediate_size"), **gated},
            "moe": self._experts(config, gated),
        }
        eps = config.take("rms_norm_eps")
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": config.take("hidden_size"), "tie_word_embeddings": False},
            "position": "none",
            "norm": {"kind": "rms_norm", "eps": eps},
            "max_position_embeddings": config.take("max_position_embeddings", "model_max_length"),
            "mixers": placed(names, {"kda": delta, "mla": latent}),
            "ffns": placed(ffn_names, ffns),
            "stack": stack(names, ffn_names, block=self._block(config, eps)),
        }

    def _more_of_delta(self, inner: Config) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if inner.take("use_full_rank_gate", default=False):
            found["full_rank_gate"] = True
        floor = inner.take("gate_lower_bound", default=None)
        return found if floor is None else {**found, "decay_floor": float(floor)}

    def _gated(self, config: Config) -> dict[str, Any]:
        """Keys of a gated feed-forward beside its width."""
        betas = (
            config.take("activation_situ_beta", default=None),
            config.take("activation_situ_linear_beta", default=None),
        )
        config.expect("hidden_act", "situ", "silu", why="is no activation of this family, situ or silu")
        if config.data.get("hidden_act", "situ") != "situ":
            return {}
        gated = {
            "activation": "situ",
            # Where none is stated the gate's is 1, and the other branch has none.
            "situ_beta": float(betas[0] or 1.0),
            "situ_linear_beta": float(betas[1] or 0.0),
        }
        return without_defaults(gated, situ_beta=4.0, situ_linear_beta=25.0)

    def _experts(self, config: Config, gated: Mapping[str, Any]) -> dict[str, Any]:
        found = self._moe(config)
        chosen = found.pop("router")
        if gated:
            found["expert"] = {"kind": "swiglu", **gated}
        latent = config.take("routed_expert_hidden_size", default=None)
        if latent is not None:
            found["latent_size"] = latent
        if config.take("latent_moe_use_norm", default=False) and latent is not None:
            found["latent_norm"] = True
        return {**found, "router": chosen}

    def _block(self, config: Config, eps: Any) -> Any:
        size = config.take("attn_res_block_size", default=None)
        if size is None:
            return "pre_norm"
        return without_defaults({"kind": "attention_residual", "block_size": size, "eps": eps}, eps=1e-5)

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return _RULES

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {}


class KimiK3(Nested):
    """The text side of KimiK3ForConditionalGeneration."""

    model_class: ClassVar[str] = "KimiK3ForConditionalGeneration"
    text: ClassVar[type[Checkpoint]] = KimiK3Text
    other_namings: ClassVar[Sequence[Naming]] = TOWERED
    towers: ClassVar[Sequence[LeftOut]] = (
        LeftOut("vision_tower.*", "the vision tower"),
        LeftOut("mm_projector.*", "what brings images to the text model"),
    )
    outer_no_effect: ClassVar[Mapping[str, str]] = {
        "vision_config": "of the vision tower, which is left out",
        **dict.fromkeys(
            ("media_placeholder_token_id", "ignore_index", "image_placeholder", "video_placeholder"),
            "of pictures among the text",
        ),
    }
