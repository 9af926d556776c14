"""DeepSeek-V4: older spellings of its configuration, three layouts of its tensors, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("torch")

from safetensors.numpy import load_file, save_file

from archc.checkpoint.convert import to_archc, to_hf
from archc.checkpoint.importing import import_config, import_data
from archc.errors import ArchcError
from archc.expansion import expand
from archc.graph.lockfile import to_text
from archc.spec.load import load_spec
from tests.checkpoint.spelling import Old, each_key_is_heard, graph_of, says_what_transformers_reads

pytestmark = pytest.mark.torch

PUBLISHED = Old(
    "DeepseekV4Config",
    {
        "model_type": "deepseek_v4",
        "vocab_size": 96,
        "hidden_size": 64,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 4,
        "o_groups": 2,
        "o_lora_rank": 12,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "num_hash_layers": 2,
        "index_n_heads": 3,
        "index_head_dim": 12,
        "index_topk": 7,
        "sliding_window": 9,
        "hc_mult": 3,
        "hc_sinkhorn_iters": 5,
        "hc_eps": 1e-5,
        "rms_norm_eps": 1e-5,
        "swiglu_limit": 7.0,
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.5,
        "compress_ratios": [0, 128, 4, 128, 0],
        "max_position_embeddings": 4096,
        "rope_theta": 5000.0,
        "compress_rope_theta": 70000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 16,
            "beta_slow": 2,
        },
    },
    (
        "qk_rope_head_dim",
        "num_hash_layers",
        "compress_ratios",
        "rope_theta",
        "compress_rope_theta",
        "rope_scaling",
        "hc_mult",
        "hc_sinkhorn_iters",
        "hc_eps",
        "rms_norm_eps",
        "swiglu_limit",
        "scoring_func",
        "routed_scaling_factor",
        "index_topk",
        "sliding_window",
    ),
)


def test_the_published_spelling_says_what_transformers_reads() -> None:
    says_what_transformers_reads(PUBLISHED)


def test_each_published_key_is_heard() -> None:
    each_key_is_heard(PUBLISHED)


def test_the_shipped_spec_is_what_the_published_configuration_says() -> None:
    config = {
        "model_type": "deepseek_v4",
        "compress_ratios": [0, 0, *[4, 128] * 20, 4],
        "rope_scaling": {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 65536},
        "dtype": "bfloat16",
    }
    assert _without_name(to_text(import_data(config, name="flash").graph)) == _without_name(
        to_text(expand(load_spec("deepseek-v4-flash")))
    )


def _without_name(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.strip().startswith('"name"') or "layers" in line]


def test_numbers_of_tokens_an_entry_are_read_in_both_spellings() -> None:
    one = {**PUBLISHED.config, "compress_rate_csa": 8, "compress_rate_hca": 32}
    rates = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 32}
    assert graph_of(one) == graph_of({**PUBLISHED.config, "compress_rates": rates}) != graph_of(PUBLISHED.config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_key_value_heads", 2),
        ("n_shared_experts", 2),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
        ("topk_method", "greedy"),
        ("scoring_func", "tanh"),
        ("compress_ratios", [0, 8, 4, 128]),
        ("layer_types", ["full_attention"] * 4),
        ("mlp_layer_types", ["dense"] * 4),
    ],
)
def test_what_no_graph_has_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ArchcError) as caught:
        import_data({**PUBLISHED.config, key: value}, name="refused")
    assert f"\n  {key}: {value!r} " in str(caught.value)


def _published(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers saves, as published files name it."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix("model.").replace("embed_tokens.", "embed.").replace("hc_head.hc_", "hc_head_")
        found[plain.replace(".attn.norm.", ".attn.kv_norm.")] = tensor
    return found


def _as_module(oracle: Any) -> dict[str, Any]:
    """What transformers computes with."""
    return {name: tensor.numpy() for name, tensor in oracle.model.state_dict().items()}


@pytest.mark.parametrize("layout", ["published", "module"])
def test_the_same_weights_out_of_another_layout(saved: Callable[..., Any], layout: str, tmp_path: Path) -> None:
    oracle, folder = saved("deepseek_v4")
    stored = load_file(folder / "model.safetensors")
    changed = _published(stored) if layout == "published" else _as_module(oracle)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copyfile(folder / "config.json", other / "config.json")
    save_file(changed, other / "model.safetensors")
    imported = import_config(folder)
    to_archc(folder, tmp_path / "one", imported)
    to_archc(other, tmp_path / "two", imported)
    one, two = (load_file(tmp_path / place / "model.safetensors") for place in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(tensor.tobytes() == two[name].tobytes() for name, tensor in one.items())
    assert str(one["layers.0.ffn.router.table"].dtype) == "int64"
    to_hf(tmp_path / "two", tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == changed.keys()
    assert all(tensor.tobytes() == back[name].tobytes() for name, tensor in changed.items())


def test_a_table_of_floats_is_no_table_and_integers_are_no_weights(saved: Callable[..., Any], tmp_path: Path) -> None:
    _, folder = saved("deepseek_v4")
    stored = load_file(folder / "model.safetensors")
    table, gate = "model.layers.0.ffn.gate.tid2eid", "model.layers.0.ffn.gate.weight"
    stored |= {table: stored[table].astype("float32"), gate: stored[gate].astype("int64")}
    shutil.copyfile(folder / "config.json", tmp_path / "config.json")
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(ArchcError) as caught:
        to_archc(tmp_path, tmp_path / "out", import_config(tmp_path))
    assert f"{table} is F32; weights should be I64, I32" in str(caught.value)
    assert f"{gate} is I64; weights should be F64, F32, F16, BF16" in str(caught.value)
