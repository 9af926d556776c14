"""Kimi K3, which no class of transformers computes: the formulas of its papers written out under the released names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

import archc
from archc.checkpoint.convert import to_archc, to_hf
from archc.checkpoint.importing import import_config, import_data
from archc.errors import ArchcError

HIDDEN, VOCAB, HEADS, D, ROPE, V, RANK, Q_RANK, LATENT, EXPERTS, INNER, LAYERS = (
    16,
    40,
    3,
    8,
    4,
    8,
    12,
    10,
    10,
    6,
    12,
    5,
)
EPS = 1e-5
TEXT: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "moe_intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "num_shared_experts": 2,
    "kv_lora_rank": RANK,
    "q_lora_rank": Q_RANK,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": V,
    "qk_nope_head_dim": D,
    "num_experts": EXPERTS,
    "num_experts_per_token": 2,
    "routed_expert_hidden_size": LATENT,
    "latent_moe_use_norm": True,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "attn_res_block_size": 2,
    "max_position_embeddings": 64,
    "hidden_act": "situ",
    "activation_situ_beta": 0.5,
    "activation_situ_linear_beta": 0.75,
    "rms_norm_eps": EPS,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "use_grouped_topk": True,
    "routed_scaling_factor": 1.5,
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
    "linear_attn_config": {
        "full_attn_layers": [4, 5],
        "kda_layers": [1, 2, 3],
        "head_dim": D,
        "num_heads": HEADS,
        "short_conv_kernel_size": 3,
        "use_full_rank_gate": True,
        "gate_lower_bound": -5.0,
    },
}
CONFIG: dict[str, Any] = {"model_type": "kimi_k3", "text_config": TEXT, "vision_config": {"patch_size": 14}}
WIDTH = HEADS * D


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the text model, by its released name."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "model.output_attn_res_norm.weight": (HIDDEN,),
        "model.output_attn_res_proj.weight": (1, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        at, mixer = f"model.layers.{layer}", f"model.layers.{layer}.self_attn"
        for name in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
            found[f"{at}.{name}.weight"] = (HIDDEN,)
        for name in ("self_attention_res_proj", "mlp_res_proj"):
            found[f"{at}.{name}.weight"] = (1, HIDDEN)
        if layer < 3:
            for name in ("q_proj", "k_proj", "v_proj", "g_proj"):
                found[f"{mixer}.{name}.weight"] = (WIDTH, HIDDEN)
            for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
                found[f"{mixer}.{name}.weight"] = (WIDTH, 1, 3)
            found |= {f"{mixer}.A_log": (128,), f"{mixer}.dt_bias": (WIDTH,), f"{mixer}.o_norm.weight": (D,)}
            found |= {f"{mixer}.f_a_proj.weight": (D, HIDDEN), f"{mixer}.f_b_proj.weight": (WIDTH, D)}
            found |= {f"{mixer}.b_proj.weight": (HEADS, HIDDEN), f"{mixer}.o_proj.weight": (HIDDEN, WIDTH)}
        else:
            found |= {f"{mixer}.q_a_proj.weight": (Q_RANK, HIDDEN), f"{mixer}.q_a_layernorm.weight": (Q_RANK,)}
            found |= {f"{mixer}.q_b_proj.weight": (HEADS * (D + ROPE), Q_RANK)}
            found |= {f"{mixer}.kv_a_proj_with_mqa.weight": (RANK + ROPE, HIDDEN)}
            found |= {f"{mixer}.kv_a_layernorm.weight": (RANK,), f"{mixer}.kv_b_proj.weight": (HEADS * (D + V), RANK)}
            found |= {f"{mixer}.g_proj.weight": (HEADS * V, HIDDEN), f"{mixer}.o_proj.weight": (HIDDEN, HEADS * V)}
        if layer == 0:
            found |= gated(f"{at}.mlp", 24, HIDDEN)
            continue
        moe = f"{at}.block_sparse_moe"
        found |= {f"{moe}.gate.weight": (EXPERTS, HIDDEN), f"{moe}.gate.e_score_correction_bias": (EXPERTS,)}
        found |= gated(f"{moe}.shared_experts", 2 * INNER, HIDDEN)
        found |= {f"{moe}.routed_expert_down_proj.weight": (LATENT, HIDDEN)}
        found |= {
            f"{moe}.routed_expert_up_proj.weight": (HIDDEN, LATENT),
            f"{moe}.routed_expert_norm.weight": (LATENT,),
        }
        for expert in range(EXPERTS):
            found |= gated(f"{moe}.experts.{expert}", INNER, LATENT, ("w1", "w3", "w2"))
    return found


def gated(
    module: str, inner: int, width: int, names=("gate_proj", "up_proj", "down_proj")
) -> dict[str, tuple[int, ...]]:
    gate, up, down = (f"{module}.{name}.weight" for name in names)
    return {gate: (inner, width), up: (inner, width), down: (width, inner)}


def drawn() -> dict[str, torch.Tensor]:
    """Weights of a size at which every part shows."""
    draw = torch.Generator().manual_seed(0)
    found: dict[str, torch.Tensor] = {}
    for name, shape in shapes().items():
        noise = torch.randn(shape, generator=draw)
        found[name] = 1 + 0.3 * noise if "norm" in name else noise * 1.2 * shape[-1] ** -0.5
        if name.endswith("A_log"):
            found[name] = torch.where(torch.arange(128) < HEADS, 0.5 * noise, 0.0)
    return found


class Written:
    """The text model, a token at a time, in float64."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = {name: tensor.double() for name, tensor in weights.items()}

    def w(self, name: str) -> torch.Tensor:
        return self.weights[f"{name}.weight"]

    def rms(self, x: torch.Tensor, name: str, eps: float = EPS) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * self.w(name)

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """(seq,) -> (seq, vocabulary)."""
        total, closed = self.w("model.embed_tokens")[ids], list[torch.Tensor]()
        for layer in range(LAYERS):
            at = f"model.layers.{layer}"
            read = self.rms(self.mixture([*closed, total], f"{at}.self_attention_res"), f"{at}.input_layernorm")
            y = self.delta(read, f"{at}.self_attn") if layer < 3 else self.latent(read, f"{at}.self_attn")
            if layer % 2 == 0:
                closed, total = [*closed, total], y
            else:
                total = total + y
            read = self.rms(self.mixture([*closed, total], f"{at}.mlp_res"), f"{at}.post_attention_layernorm")
            total = total + (self.ffn(read, f"{at}.mlp") if layer == 0 else self.moe(read, f"{at}.block_sparse_moe"))
        x = self.rms(self.mixture([*closed, total], "model.output_attn_res"), "model.norm")
        return x @ self.w("lm_head").T

    def mixture(self, values: list[torch.Tensor], name: str) -> torch.Tensor:
        scores = torch.stack([self.rms(value, f"{name}_norm") @ self.w(f"{name}_proj")[0] for value in values], -1)
        shares = scores.softmax(-1)
        return (torch.stack(values, -1) * shares.unsqueeze(1)).sum(-1)

    def ffn(
        self, x: torch.Tensor, at: str, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    ) -> torch.Tensor:
        gate, up = (x @ self.w(f"{at}.{name}").T for name in names[:2])
        beta, linear = TEXT["activation_situ_beta"], TEXT["activation_situ_linear_beta"]
        middle = beta * torch.tanh(gate / beta) * gate.sigmoid() * linear * torch.tanh(up / linear)
        return middle @ self.w(f"{at}.{names[2]}").T

    def moe(self, x: torch.Tensor, at: str) -> torch.Tensor:
        scores = (x @ self.w(f"{at}.gate").T).sigmoid()
        chosen = (scores + self.weights[f"{at}.gate.e_score_correction_bias"]).topk(2, -1)[1]
        shares = scores.gather(-1, chosen)
        shares = shares / shares.sum(-1, keepdim=True) * TEXT["routed_scaling_factor"]
        inner = x @ self.w(f"{at}.routed_expert_down_proj").T
        rows = [torch.zeros(LATENT, dtype=torch.float64) for _ in inner]
        for token, row in enumerate(inner):
            for expert, share in zip(chosen[token].tolist(), shares[token], strict=True):
                rows[token] = rows[token] + share * self.ffn(row, f"{at}.experts.{expert}", ("w1", "w3", "w2"))
        routed = self.rms(torch.stack(rows), f"{at}.routed_expert_norm") @ self.w(f"{at}.routed_expert_up_proj").T
        return routed + self.ffn(x, f"{at}.shared_experts")

    def latent(self, x: torch.Tensor, at: str) -> torch.Tensor:
        seq = len(x)
        q = self.rms(x @ self.w(f"{at}.q_a_proj").T, f"{at}.q_a_layernorm", 1e-6) @ self.w(f"{at}.q_b_proj").T
        latent, shared = (x @ self.w(f"{at}.kv_a_proj_with_mqa").T).split((RANK, ROPE), -1)
        kv = self.rms(latent, f"{at}.kv_a_layernorm", 1e-6) @ self.w(f"{at}.kv_b_proj").T
        k, v = kv.view(seq, HEADS, D + V).split((D, V), -1)
        k = torch.cat((k, shared.unsqueeze(1).expand(-1, HEADS, -1)), -1)
        scores = torch.einsum("shd,thd->hst", q.view(seq, HEADS, -1), k) / (D + ROPE) ** 0.5
        scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), float("-inf"))
        o = torch.einsum("hst,thd->shd", scores.softmax(-1), v).flatten(1)
        return (o * (x @ self.w(f"{at}.g_proj").T).sigmoid()) @ self.w(f"{at}.o_proj").T

    def delta(self, x: torch.Tensor, at: str) -> torch.Tensor:
        q, k, v = (self.convolved(x @ self.w(f"{at}.{n}_proj").T, self.w(f"{at}.{n}_conv1d")) for n in "qkv")
        q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
        forget = (x @ self.w(f"{at}.f_a_proj").T @ self.w(f"{at}.f_b_proj").T + self.weights[f"{at}.dt_bias"]).view(
            -1, HEADS, D
        )
        decay = (-5.0 * (self.weights[f"{at}.A_log"][:HEADS].exp().view(1, -1, 1) * forget).sigmoid()).exp()
        beta = (x @ self.w(f"{at}.b_proj").T).sigmoid()
        state, rows = torch.zeros(HEADS, D, D, dtype=torch.float64), list[torch.Tensor]()
        for t in range(len(x)):
            state = decay[t].unsqueeze(-1) * state
            seen = torch.einsum("hk,hkv->hv", k[t], state)
            state = state + torch.einsum("hk,hv->hkv", k[t], beta[t].unsqueeze(-1) * (v[t] - seen))
            rows.append(torch.einsum("hk,hkv->hv", q[t], state) / D**0.5)
        gate = (x @ self.w(f"{at}.g_proj").T).sigmoid().view(-1, HEADS, D)
        return (self.rms(torch.stack(rows), f"{at}.o_norm") * gate).flatten(1) @ self.w(f"{at}.o_proj").T

    def convolved(self, x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        padded = torch.cat((torch.zeros(2, WIDTH, dtype=torch.float64), x))
        y = torch.stack([padded[i : i + len(x)] * kernel[:, 0, i] for i in range(3)]).sum(0)
        return (y * y.sigmoid()).view(-1, HEADS, D)


def saved(folder: Path) -> Path:
    """A folder as released, but for the packing of its experts, with a tensor of the tower."""
    folder.mkdir(parents=True)
    tensors = {f"language_model.{name}": tensor.contiguous() for name, tensor in drawn().items()}
    save_file({**tensors, "vision_tower.patch_embed.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "dtype": "float32"}))
    return folder


def test_the_formulas_give_the_same_logits(tmp_path: Path) -> None:
    folder = saved(tmp_path / "there")
    imported = import_config(folder)
    to_archc(folder, tmp_path / "out", imported, allow_unused=("vision_tower.*",))
    model = archc.load_weights(archc.build(imported.spec, device="cpu", dtype="float32"), tmp_path / "out").eval()
    ids = torch.randint(0, VOCAB, (1, 19), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        got, want = model(ids)[0].double(), Written(drawn()).logits(ids[0])
    assert float((got - want).abs().max()) < 1e-4 * float(want.abs().max())


def test_what_is_read_goes_back_bit_by_bit(tmp_path: Path) -> None:
    folder = saved(tmp_path / "there")
    to_archc(folder, tmp_path / "out", import_config(folder), allow_unused=("vision_tower.*",))
    to_hf(tmp_path / "out", tmp_path / "back")
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "back"))
    assert set(before) - set(after) == {"vision_tower.patch_embed.weight"}
    assert all(np.array_equal(tensor, before[name]) for name, tensor in after.items())


def test_the_tower_is_an_error_that_says_how_to_leave_it_out(tmp_path: Path) -> None:
    folder = saved(tmp_path / "there")
    with pytest.raises(ArchcError, match="vision tower"):
        to_archc(folder, tmp_path / "out", import_config(folder))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"hidden_act": "gelu"}, "is no activation of this family, situ or silu"),
        ({"tie_word_embeddings": True}, "this family has a head of its own"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ({"some_new_key": 1}, "text_config.some_new_key"),
    ],
)
def test_what_a_configuration_asks_for_and_this_family_has_not_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ArchcError, match=says):
        import_data({**CONFIG, "text_config": {**TEXT, **changes}}, name="x")


def test_a_key_that_no_class_has_a_default_for_must_be_stated() -> None:
    without = {key: value for key, value in TEXT.items() if key != "moe_intermediate_size"}
    with pytest.raises(ArchcError, match=r"text_config\.moe_intermediate_size is missing"):
        import_data({**CONFIG, "text_config": without}, name="x")


def test_without_blocks_of_residuals_and_a_narrow_width_it_is_kimi_linear_with_gates() -> None:
    plain = {**TEXT, "attn_res_block_size": None, "routed_expert_hidden_size": None, "hidden_act": "silu"}
    text = import_data({**CONFIG, "text_config": plain}, name="x").text
    assert "block: pre_norm" in text
    assert "latent" not in text
    assert "situ" not in text
