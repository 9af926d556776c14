"""A tiny spec around one kind: two layers of 16 channels, everything else as plain as it can be. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from archc import registry
from archc.errors import PluginError
from archc.spec.emit import emit
from archc.spec.sections import STACKS

Tree = dict[str, Any]

PLACES = {
    **{family: family for family in ("tokenizer", "embedding", "position", "norm", "head", "cache")},
    "mixer": "mixers.mixer",
    "ffn": "ffns.ffn",
    "block": "stack.block",
    "router": "ffns.ffn.router",
    "scaling": "position.scaling",
    "score": "mixers.mixer.score",
}
"""family -> path in the spec at which its kind stands."""


def spec_text(family: str, name: str, keys: Mapping[str, Any], around: Mapping[str, Any] | None = None) -> str:
    """The text of a spec that places the kind ``name`` with these YAML keys; ``around`` replaces whole sections of it.

    None for a section leaves it out. A ``stack``, ``encoder`` or ``decoder`` in ``around`` that states no ``num_layers`` is the
    usual one with its keys over it, so that ``{"stack": {"mask": "prefix"}}`` or ``{"encoder": {}, "decoder": {}}`` says it
    all. Without one a mixer stands where its ``masks`` let it: in a causal stack, an encoder, or behind a prefix.

    Raises:
        PluginError: a spec has no place for kinds of this family.
    """
    around = dict(around or {})
    mixer = name if family == "mixer" else "gqa"
    tree: Tree = {
        "spec_version": 1,
        "name": f"tiny-{name.replace('_', '-')}",
        "max_position_embeddings": 64,
        "tokenizer": {"kind": "external", "vocab_size": 40},
        "embedding": {"hidden_size": 16, "tie_word_embeddings": False},
        "position": {"kind": "rope", "theta": 100.0},
        "norm": {"kind": "rms_norm", "eps": 1e-5},
        "mixers": {"mixer": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}},
        "ffns": {"ffn": {"kind": "swiglu", "intermediate_size": 24}},
        **_sections(mixer, around),
    }
    stated = {"policy" if family == "cache" else "kind": name, **keys}
    match family:
        case "tokenizer" | "embedding" | "position" | "norm" | "head" | "cache":
            tree[family] = stated
        case "mixer" | "ffn":
            tree[f"{family}s"] = {family: stated}
        case "block":
            for section in STACKS & tree.keys():
                tree[section]["block"] = stated
        case "router":
            experts = {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 12}
            tree["ffns"] = {"ffn": {"kind": "moe", **experts, "router": stated}}
        case "scaling":
            tree["position"]["scaling"] = stated
        case "score":
            tree["mixers"] = {"mixer": {"kind": "general_attention", "num_heads": 2, "head_dim": 8, "score": stated}}
            tree["position"] = "none"
        case _:
            raise PluginError(f"a spec has no place for the {family} {name}; give a spec that has one")
    return emit({key: value for key, value in {**tree, **around}.items() if value is not None})


def _sections(mixer: str, around: dict[str, Any]) -> Tree:
    """The stacks; those that ``around`` states in part are taken from there."""
    model = registry.load("mixer", mixer)
    usual = {"num_layers": 2, "block": "pre_norm", "mixer": "mixer", "ffn": "ffn"}
    stated = {section for section in STACKS if around.get(section) is not None}
    if not stated:
        if "causal" in model.masks:
            return {"stack": usual}
        return {"encoder": usual} if "bidirectional" in model.masks else {"stack": {**usual, "mask": model.masks[0]}}
    found: Tree = {}
    for section in sorted(stated, key=STACKS.index):
        keys = around[section]
        if "num_layers" not in keys:
            cross = {"cross": "mixer"} if section == "decoder" and model.can_cross and not model.reads_encoder else {}
            found[section] = {**usual, **cross, **keys}
            del around[section]
    return found
