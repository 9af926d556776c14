"""Tiny models of the published families: what transformers is asked to build, and the spec that must equal it.

The configs are made so that every feature matters within 32 tokens: windows shorter than the prefill, rope frequencies
of a tiny head on both ends of every ramp, groups that change the choice of experts, clamps that bite, head widths that
no division gives. The norm's eps is far from every default, so that reading it from the wrong place shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``tolerance`` is the largest float32 difference of two right implementations, with a margin of about ten.

    Rounding is amplified by the random weights, each family by its own; ``seed`` was picked for little of it. ``twists``
    are (text of the spec, another text): changes that keep every shape, each of which must move the logits. ``unseen``
    are patterns of weights that no logit can show, because softmax cancels them; cached keys must show those.
    ``final_norm`` is transformers' name of that weight, ``attention`` the implementation that is right there. ``derived`` are
    patterns of persistent buffers that follow from the config: they keep their values, and are no weights of archc.
    ``states_positions`` where transformers loses count of them.
    """

    name: str
    model_class: str
    config_class: str
    config: dict[str, Any]
    spec: str
    twists: tuple[tuple[str, str], ...]
    tolerance: float = 6e-5
    seed: int = 0
    unseen: tuple[str, ...] = ()
    final_norm: str = "model.norm.weight"
    attention: str = "eager"
    derived: tuple[str, ...] = ()
    states_positions: bool = False


def config(**changes: Any) -> dict[str, Any]:
    base = {
        "vocab_size": 96,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "max_position_embeddings": 128,
        "rms_norm_eps": 0.01,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return {**base, **changes}


def layer_norm_config(**changes: Any) -> dict[str, Any]:
    """The same for families whose norms are not root mean squares: they have no ``rms_norm_eps``."""
    return {key: value for key, value in config(**changes).items() if key != "rms_norm_eps"}


def spec(name: str, body: str, *, tied: bool = False) -> str:
    head = f"""
spec_version: 1
name: tiny-{name.replace("_", "-")}
dtype: float32
tokenizer: {{kind: external, vocab_size: 96}}
embedding: {{hidden_size: 64, tie_word_embeddings: {str(tied).lower()}}}
norm: {{kind: rms_norm, eps: 0.01}}
max_position_embeddings: 128
"""
    return head.lstrip() + body.strip() + "\n"


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
GQA = {"intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24}
MLA = {
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
# theta and betas put both ends of the ramp among the few frequencies of a tiny head
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 1.0,
    "beta_slow": 0.3,
}
LINEAR, FULL = "linear_attention", "full_attention"

EPS = ("eps: 0.01", "eps: 0.0101")
THETA = ("theta: 10000.0", "theta: 9900.0")
NARROWER, WIDER = (("sliding_window: 8", f"sliding_window: {rows}") for rows in (7, 9))
NOT_RENORMALISED = ("norm_topk_prob: true", "norm_topk_prob: false")
YARN_TWISTS = (
    ("theta: 100.0", "theta: 99.0"),
    ("    factor: 4.0", "    factor: 4.1"),
    ("original_max_position_embeddings: 32", "original_max_position_embeddings: 31"),
    ("beta_fast: 1.0", "beta_fast: 1.1"),
    ("beta_slow: 0.3", "beta_slow: 0.35"),
)
TRUNCATED_TWISTS = (
    *YARN_TWISTS[:2],
    ("beta_slow: 0.3", "beta_slow: 0.3\n    truncate: false"),
    ("interleaved: true", "interleaved: false"),
)
GROUP_TWISTS = (
    ("n_group: 4", "n_group: 2"),
    ("topk_group: 2", "topk_group: 3"),
    ("scoring_func: sigmoid", "scoring_func: softmax"),
    NOT_RENORMALISED,
)
