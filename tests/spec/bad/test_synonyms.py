"""Whoever writes a Hugging Face config from memory, or pastes one, is told the right key and where it stands."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from archc import registry
from archc.errors import Problem, SpecError
from archc.spec.load import loads_spec
from archc.spec.schema import Spec, Stack
from archc.spec.slots import Slot

_where = importlib.util.spec_from_file_location("huggingface", Path(__file__).with_name("huggingface.py"))
assert _where is not None
assert _where.loader is not None
_module = importlib.util.module_from_spec(_where)
_where.loader.exec_module(_module)
ROWS: list[tuple[str, str, str, str]] = _module.ROWS
CASES = [(family, kind, key, name) for family, kind, key, names in ROWS for name in names.split()]
PLACES = {
    "mixer": ("mixers", "a"),
    "ffn": ("ffns", "f"),
    "router": ("ffns", "f", "router"),
    "block": ("stack", "block"),
    "spec": (),
}
IMPORT = "this looks like a Hugging Face config: archc import config.json writes the spec"


def keys_of(family: str, kind: str) -> set[str]:
    if family in ("spec", "stack"):
        return set((Spec if family == "spec" else Stack).model_fields)
    names = [kind] if kind else registry.names(family)
    return {key for name in names if name in registry.names(family) for key in Slot(family).load(name).model_fields}


def is_installed(family: str, kind: str, key: str) -> bool:
    return key in keys_of(family, kind) or (family == "cache" and key == "policy")


def problems(spec: dict[str, Any]) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        loads_spec(json.dumps(spec), file="x.yaml")
    return list(caught.value.problems)


def spec_with(family: str, kind: str, name: str) -> dict[str, Any]:
    """A spec in which ``name`` stands in the mapping of a family."""
    spec: dict[str, Any] = {"spec_version": 1, "name": "x", "mixers": {"a": {}}, "ffns": {"f": {"router": {}}}}
    spec["stack"] = {"num_layers": 1, "block": "pre_norm", "mixer": "a", "ffn": "f"}
    if family == "router":
        spec["ffns"]["f"]["kind"] = "moe"
    holder = spec
    if family == "block":
        spec["stack"]["block"] = {}
    for step in PLACES.get(family, (family,)):
        holder = holder.setdefault(step, {})
    if kind:
        holder["kind"] = kind
    holder[name] = 1
    return spec


@pytest.mark.parametrize(("family", "kind", "key", "name"), CASES, ids=[".".join(filter(None, case)) for case in CASES])
def test_a_name_from_elsewhere_is_answered_with_the_key_here(family: str, kind: str, key: str, name: str):
    if not is_installed(family, kind, key):
        pytest.skip("its kind is not installed")
    if name in keys_of(family, kind):
        pytest.skip("it is a key here too")
    path = ".".join((*PLACES.get(family, (family,)), name))
    (found,) = [problem for problem in problems(spec_with(family, kind, name)) if problem.path == path]
    assert key in f"{found.message}. {found.suggestion}".replace(f"{name} ", "").replace(",", " ").split() or any(
        f"{word} {key}{end}" in f"{found.message}. {found.suggestion}"
        for word in ("is", "mean", "and")
        for end in ("", "?")
    )


@pytest.mark.parametrize("name", sorted({case[3] for case in CASES}))
def test_at_the_top_it_is_answered_with_the_section_too(name: str):
    meant = [(family, key) for family, kind, key, other in CASES if other == name and is_installed(family, kind, key)]
    if not meant:
        pytest.skip("its kind is not installed")
    (found,) = [problem for problem in problems(spec_with("spec", "", name)) if problem.path == name]
    told = str(found)
    if name == "vocab_size":
        assert told.endswith("belongs in tokenizer")
        return
    assert any(key in told for _, key in meant)
    assert any(family in told or family == "spec" for family, _ in meant)


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    },
    "gpt2": {"activation_function": "gelu_new", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12},
    "bloom": {"model_type": "bloom", "n_layer": 30, "num_attention_heads": 32, "layer_norm_epsilon": 1e-05},
    "falcon": {"alibi": False, "multi_query": True, "new_decoder_architecture": False, "num_hidden_layers": 32},
    "gemma3": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {"hidden_size": 2560, "sliding_window": 1024, "rope_scaling": {"factor": 8.0}},
        "vision_config": {"hidden_size": 1152},
    },
    "deepseek_v3": {
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 1,
    },
    "kimi_linear": {
        "linear_attn_config": {"num_heads": 32, "kda_layers": [1, 2, 3], "full_attn_layers": [4]},
        "moe_renormalize": True,
        "num_experts_per_token": 8,
    },
    "qwen3_next": {"layer_types": ["linear_attention"] * 3, "linear_num_key_heads": 16, "linear_conv_kernel_dim": 4},
}


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_pasted_config_is_recognised_and_pointed_to_import(family: str, form: str):
    text = json.dumps(CONFIGS[family], indent=2) if form == "json" else yaml.safe_dump(CONFIGS[family])
    with pytest.raises(SpecError) as caught:
        loads_spec(text, file="config.json")
    assert str(caught.value.problems[-1]) == f"config.json: {IMPORT}"


@pytest.mark.parametrize("family", CONFIGS)
def test_a_config_pasted_into_a_spec_is_recognised_too(family: str):
    text = f"spec_version: 1\nname: x\n{yaml.safe_dump(CONFIGS[family])}"
    with pytest.raises(SpecError) as caught:
        loads_spec(text, file="x.yaml")
    assert str(caught.value.problems[-1]) == f"x.yaml: {IMPORT}"
