"""Attention, routing and experts written out in float64, one token at a time, from the formulas alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gqa(
    x: Tensor, weights: dict[str, Tensor], kind, *, theta: float | None, sees, hidden_norm_eps: float, slopes=None
) -> Tensor:
    """(seq, hidden) -> same. ``sees(query, key)`` is the mask; rope turns halves of the whole head; ``slopes`` a head."""
    heads, kv_heads, d, seq = kind.num_heads, kind.num_kv_heads, kind.head_dim, x.shape[0]

    def project(name, x):
        y = x @ weights[f"{name}.weight"].T
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    q, k, v = (project(f"{n}_proj", x).view(seq, -1, d) for n in "qkv")
    rows = []
    for s in range(seq):
        outs = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            query = _prepared(q[s, head], s, kind, theta, hidden_norm_eps)
            if kind.query_temperature is not None:
                steps = (s + 1) // kind.query_temperature.floor
                query = query * (1 + kind.query_temperature.scale * math.log(1 + steps))
            seen = [t for t in range(seq) if sees(s, t)]
            scores = []
            for t in seen:
                score = float(query @ _prepared(k[t, group], t, kind, theta, hidden_norm_eps)) / math.sqrt(d)
                if kind.attn_logit_softcapping is not None:
                    score = kind.attn_logit_softcapping * math.tanh(score / kind.attn_logit_softcapping)
                if slopes is not None:
                    score += slopes[head] * (t - s)
                scores.append(math.exp(score))
            total = sum(scores)
            if kind.sink_logits:
                total += math.exp(float(weights["attention.sinks"][head]))
            outs.append(sum(score / total * v[t, group] for score, t in zip(scores, seen, strict=True)))
        rows.append(torch.cat(outs))
    o = torch.stack(rows)
    if kind.output_gate:
        o = o / (1 + torch.exp(-project("gate_proj", x)))
    return project("o_proj", o)


def _prepared(row: Tensor, position: int, kind, theta: float | None, eps: float) -> Tensor:
    """A head of a query or a key, turned by its position; then of unit mean square where the kind says so."""
    if theta is not None:
        half = row.shape[0] // 2
        turned = row.clone()
        for i in range(half):
            angle = position * theta ** (-i / half)
            turned[i] = row[i] * math.cos(angle) - row[i + half] * math.sin(angle)
            turned[i + half] = row[i + half] * math.cos(angle) + row[i] * math.sin(angle)
        row = turned
    return row / math.sqrt(float(row.square().mean()) + eps) if kind.qk_norm == "unit" else row


def route(x: list[float], weight: list[list[float]], bias: list[float], correction: list[float], router, top_k: int):
    """One token: expert -> weight, by the published steps."""
    logits = [sum(w * c for w, c in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
    if router.scoring_func == "softmax":
        total = sum(math.exp(logit) for logit in logits)
        scores = [math.exp(logit) / total for logit in logits]
    elif router.scoring_func == "sigmoid":
        scores = [1 / (1 + math.exp(-logit)) for logit in logits]
    else:
        scores = [math.sqrt(math.log(1 + math.exp(logit))) for logit in logits]
    choice = [score + c for score, c in zip(scores, correction, strict=True)]
    size = len(choice) // router.n_group
    groups = [sorted(choice[i * size : (i + 1) * size], reverse=True) for i in range(router.n_group)]
    judged = [group[0] if router.group_score == "max" else sum(group[:2]) for group in groups]
    kept = sorted(range(router.n_group), key=lambda i: -judged[i])[: router.topk_group]
    allowed = [i for i in range(len(choice)) if i // size in kept]
    chosen = sorted(allowed, key=lambda i: -choice[i])[:top_k]
    total = sum(scores[i] for i in chosen) if router.norm_topk_prob else 1.0
    return {i: scores[i] / total * router.routed_scaling_factor for i in chosen}


def moe(x: Tensor, weights: dict[str, Tensor], kind, *, eps: float) -> Tensor:
    """One token (hidden,) -> same, every expert in turn."""
    experts = kind.num_experts
    bias = weights.get("router.bias", torch.zeros(experts))
    correction = weights.get("router.e_score_correction_bias", torch.zeros(experts))
    words = (x.tolist(), weights["router.weight"].tolist(), bias.tolist(), correction.tolist())
    inner = x if kind.latent_size is None else weights["latent_down_proj.weight"] @ x
    total = torch.zeros_like(inner)
    for expert, share in route(*words, kind.router, kind.num_experts_per_tok).items():
        own = {name: weights[f"experts.{name}"][expert] for name in ("gate_proj", "up_proj", "down_proj")}
        biases = {name: weights[f"experts.{name}_bias"][expert] for name in own if f"experts.{name}_bias" in weights}
        if kind.router.weight_on == "input":
            total = total + _expert(share * inner, own, biases, kind.expert)
        else:
            total = total + share * _expert(inner, own, biases, kind.expert)
    if kind.latent_norm:
        total = total / torch.sqrt(total.square().mean() + eps) * weights["latent_norm.weight"]
    y = total if kind.latent_size is None else weights["latent_up_proj.weight"] @ total
    if kind.num_shared_experts:
        own = {name: weights[f"shared_experts.{name}.weight"] for name in ("gate_proj", "up_proj", "down_proj")}
        biases = {n: weights[f"shared_experts.{n}.bias"] for n in own if f"shared_experts.{n}.bias" in weights}
        shared = _expert(x, own, biases, kind.expert)
        if kind.shared_gate:
            shared = shared / (1 + torch.exp(-weights["shared_experts.gate.weight"] @ x))
        y = y + shared
    return y


def _expert(x: Tensor, weights: dict[str, Tensor], biases: dict[str, Tensor], kind) -> Tensor:
    gate, up = (weights[n] @ x + biases.get(n, 0.0) for n in ("gate_proj", "up_proj"))
    if kind.kind_name == "clamped_swiglu":
        gate, up = gate.clamp(max=kind.limit), up.clamp(-kind.limit, kind.limit)
        middle = gate / (1 + torch.exp(-kind.alpha * gate)) * (up + kind.up_offset)
    elif kind.activation == "relu2":
        middle = gate.clamp(min=0) ** 2 * up
    elif kind.activation == "gelu":
        middle = gate * (1 + torch.erf(gate / math.sqrt(2))) / 2 * up
    elif kind.activation == "gelu_tanh":
        middle = gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2 * up
    else:
        middle = gate / (1 + torch.exp(-gate)) * up
    return weights["down_proj"] @ middle + biases.get("down_proj", 0.0)
