# B batch, S tokens, H heads, K key and value channels
"""Times the gated delta rule (Kimi Delta Attention, arXiv 2510.26692) against transformers' fallback and attention.

All candidates run in one process, one after the other, the order turning every round, so that noise of the machine
hits them alike; medians are printed. `scaled_dot_product_attention` of the same shape is there for scale only.

The operator is many small steps, each a barrier between threads: with more threads than free cores every one of them
waits for a busy core. Run this on an idle machine, or with --threads 1.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from archc.torch_backend.operators.gated_delta import gated_delta_rule

# Least speed-up over transformers' fallback, by pass and length.
TARGETS = {("fwd", 1024): 10, ("fwd", 2048): 10, ("fwd+bwd", 1024): 10, ("fwd+bwd", 2048): 15}
LARGEST_GROWTH = 2.1
LARGEST_OVER_ATTENTION = 2.5

Name = TypeVar("Name", str, int)


def inputs(tokens: int, heads: int, channels: int) -> list[Tensor]:
    """q, k, v, log_decay: (1, S, H, K), beta: (1, S, H)."""
    q, k = (F.normalize(torch.randn(1, tokens, heads, channels), dim=-1) for _ in range(2))
    v, gate = torch.randn(2, 1, tokens, heads, channels)
    beta = torch.rand(1, tokens, heads)
    return [tensor.requires_grad_() for tensor in (q, k, v, -F.softplus(gate), beta)]


def archc(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    return gated_delta_rule(q, k, v, log_decay, beta, None, scale=q.shape[-1] ** -0.5)[0]


def attention(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def transformers_fallback() -> Callable[..., Tensor]:
    from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention

    return lambda *tensors: chunk_kimi_delta_attention(*tensors)[0]


def seconds(function: Callable[..., Tensor], tensors: list[Tensor], backward: bool) -> float:
    d_out = torch.ones_like(tensors[2])
    begin = time.perf_counter()
    if backward:
        torch.autograd.grad(function(*tensors), tensors, d_out, allow_unused=True)
    else:
        with torch.no_grad():
            function(*tensors)
    return time.perf_counter() - begin


def medians(jobs: dict[Name, Callable[[], float]], rounds: int) -> dict[Name, float]:
    """Milliseconds a job; the first round warms up and does not count."""
    times: dict[Name, list[float]] = {name: [] for name in jobs}
    names = list(jobs)
    for turn in range(rounds + 1):
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            elapsed = jobs[name]()
            if turn:
                times[name].append(elapsed)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def compare(lengths: list[int], heads: int, channels: int, rounds: int) -> None:
    candidates = {"archc": archc, "transformers": transformers_fallback(), "attention": attention}
    print(
        f"{'pass':<8}{'tokens':>7}{'archc ms':>10}{'transformers ms':>17}{'attention ms':>14}{'speed-up':>10}", end=""
    )
    print(f"{'target':>8}{'/ attention':>13}")
    for direction in ("fwd", "fwd+bwd"):
        for tokens in lengths:
            tensors = inputs(tokens, heads, channels)
            jobs = {
                name: partial(seconds, function, tensors, direction == "fwd+bwd")
                for name, function in candidates.items()
            }
            ms = medians(jobs, rounds)
            speed_up, share = ms["transformers"] / ms["archc"], ms["archc"] / ms["attention"]
            target = TARGETS.get((direction, tokens))
            verdict = "" if target is None else "reached" if speed_up >= target else "MISSED"
            print(f"{direction:<8}{tokens:>7}{ms['archc']:>10.1f}{ms['transformers']:>17.1f}", end="")
            print(f"{ms['attention']:>14.1f}{speed_up:>9.1f}x{target or '':>8}{share:>12.2f}x  {verdict}")
    print(f"target against attention, fwd+bwd at 2048 tokens: at most {LARGEST_OVER_ATTENTION}x")


def growth(lengths: list[int], heads: int, channels: int, rounds: int) -> None:
    print(f"\n{'pass':<8}{'tokens':>7}{'archc ms':>10}{'us a token':>12}{'t(2T)/t(T)':>12}{'target':>8}")
    cases = {tokens: inputs(tokens, heads, channels) for tokens in lengths}
    for direction in ("fwd", "fwd+bwd"):
        jobs = {tokens: partial(seconds, archc, case, direction == "fwd+bwd") for tokens, case in cases.items()}
        ms = medians(jobs, rounds)
        for tokens in lengths:
            print(f"{direction:<8}{tokens:>7}{ms[tokens]:>10.1f}{1e3 * ms[tokens] / tokens:>12.1f}", end="")
            if tokens // 2 in ms:
                ratio = ms[tokens] / ms[tokens // 2]
                print(
                    f"{ratio:>12.2f}{LARGEST_GROWTH:>8}  {'reached' if ratio <= LARGEST_GROWTH else 'MISSED'}", end=""
                )
            print()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Times the gated delta rule against transformers' fallback and attention."
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--growth-lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.heads} heads, {options.channels} channels")
    compare(options.lengths, options.heads, options.channels, options.rounds)
    growth(options.growth_lengths, options.heads, options.channels, 3 * options.rounds)


if __name__ == "__main__":
    main()
