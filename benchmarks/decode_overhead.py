"""Eager decode of the 100 M llama-like model against the same thing written by hand: what the generated classes cost.

python benchmarks/decode_overhead.py [--rounds 12] [--context 256]
"""

from __future__ import annotations

import argparse

import torch
from peers import SMALL_LLAMA, archc_model, interleaved, show
from torch import Tensor, nn
from torch.nn import functional

import archc
from archc.torch_backend.step import Step

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 768, 12, 12, 4, 64, 2048, 32000


class HandWrittenLayer(nn.Module):
    """A llama layer as one would write it for this model alone."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = (nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.first, self.second = (nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: int, keys: Tensor, values: Tensor) -> Tensor:
        y = self.first(x)
        q = self.q(y).view(1, 1, HEADS, HEAD_DIM).transpose(1, 2)
        k = self.k(y).view(1, 1, KV_HEADS, HEAD_DIM).transpose(1, 2)
        v = self.v(y).view(1, 1, KV_HEADS, HEAD_DIM).transpose(1, 2)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        keys[:, :, past : past + 1], values[:, :, past : past + 1] = k, v
        k, v = keys[:, :, : past + 1], values[:, :, : past + 1]
        y = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class HandWritten(nn.Module):
    """The whole model, one token a call."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(HandWrittenLayer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.frequencies = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)

    def forward(self, ids: Tensor, past: int, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        x = self.table(ids)
        angles = past * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            x = layer(x, cos, sin, past, keys, values)
        return functional.linear(self.norm(x), self.table.weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--context", type=int, default=256)
    options = parser.parse_args()
    context, rows = options.context, 2048
    ours, by_hand = archc_model(SMALL_LLAMA), HandWritten()
    held = archc.new_cache(ours, batch=1, max_model_len=rows)
    cache = [
        (torch.zeros(1, KV_HEADS, rows, HEAD_DIM), torch.zeros(1, KV_HEADS, rows, HEAD_DIM)) for _ in range(LAYERS)
    ]
    token = torch.zeros(1, 1, dtype=torch.int64)

    @torch.no_grad()
    def run_ours() -> None:
        for i in range(16):
            ours(token, Step.at(context + i, 1), held)

    @torch.no_grad()
    def run_by_hand() -> None:
        for i in range(16):
            by_hand(token, context + i, cache)

    times = interleaved({"archc": run_ours, "by hand": run_by_hand}, rounds=options.rounds)
    ratio = times["archc"] / times["by hand"]
    detail = f"{ratio:.3f}x ({1e3 * times['archc'] / 16:.2f} / {1e3 * times['by hand'] / 16:.2f} ms a token)"
    show(
        "Eager decode, 100 M llama-like", [("what", "archc over hand-written", "target"), ("decode", detail, "<= 1.05")]
    )


if __name__ == "__main__":
    main()
