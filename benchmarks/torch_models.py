"""T3 to T6: training, prefill and decode of small models, archc and transformers taking turns in one process.

python benchmarks/torch_models.py [--lengths 512,1024,2048] [--rounds 5] [--only llama|hybrid|memory]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable

import torch
from peers import SMALL_KIMI, SMALL_LLAMA, archc_model, interleaved, kimi_peer, llama_peer, show
from torch import nn
from torch.nn import functional

import archc
from archc.torch_backend.step import Step

TRAIN_TARGETS = {512: 3.0, 1024: 4.0, 2048: 6.0}


def trainer(model: nn.Module, ids: torch.Tensor, *, peer: bool) -> Callable[[], None]:
    """One forward and backward with next-token cross-entropy."""

    def run() -> None:
        model.zero_grad(set_to_none=True)
        logits = model(ids, use_cache=False).logits if peer else model(ids)
        functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()

    return run


def prefiller(model: nn.Module, ids: torch.Tensor, *, peer: bool) -> Callable[[], None]:
    """A prompt into a cache, the head on the last token only."""

    @torch.no_grad()
    def run() -> None:
        if peer:
            model(ids, use_cache=True, logits_to_keep=1)
        else:
            cache = archc.new_cache(model, batch=1, max_model_len=ids.shape[1])
            model(ids, Step.at(0, ids.shape[1]), cache, last_only=True)

    return run


def decoder(model: nn.Module, ids: torch.Tensor, *, peer: bool, steps: int = 16) -> Callable[[], None]:
    """Steps of one token over a prompt that is cached once."""
    length = ids.shape[1]
    with torch.no_grad():
        if peer:
            held = model(ids, use_cache=True, logits_to_keep=1).cache
        else:
            held = archc.new_cache(model, batch=1, max_model_len=length + 4096)
            model(ids, Step.at(0, length), held, last_only=True)
    token = ids[:, :1]
    past = length

    @torch.no_grad()
    def run() -> None:
        nonlocal past
        for _ in range(steps):
            if peer:
                model(token, cache=held, use_cache=True)
            else:
                model(token, Step.at(past, 1), held)
            past += 1

    return run


def gemm_flops() -> float:
    """FLOPs a second of a large float32 matrix product, measured here and now: the limit of everything below."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return 2 * 2048**3 / interleaved({"mm": lambda: a @ b}, rounds=5)["mm"]


def compare(title: str, spec: str, peer: Callable[[], nn.Module], lengths: list[int], rounds: int) -> None:
    """Ratios of tokens a second, archc over transformers."""
    ours, theirs = archc_model(spec), peer()
    rows = [("what", "archc over transformers (tok/s, archc's share of GEMM)", "target")]
    peak = gemm_flops()
    for length in lengths:
        cost = archc.estimate(archc.loads_spec(spec), max_model_len=length).to_json()["flops"]
        work = {"train": cost["train_step"], "prefill": cost["prefill"], "decode": 16 * cost["decode"]}
        ids = torch.randint(0, 32000, (1, length), generator=torch.Generator().manual_seed(0))
        for name, make, count in (("train", trainer, length), ("prefill", prefiller, length), ("decode", decoder, 16)):
            runs = {"archc": make(ours, ids, peer=False), "transformers": make(theirs, ids, peer=True)}
            heavy = name == "train"
            times = interleaved(runs, rounds=max(3, rounds // 2) if heavy and length > 1024 else rounds)
            ratio = times["transformers"] / times["archc"]
            if title == "llama":
                target = "T6 >= 1.0"
            else:
                target = {"train": f"T3 >= {TRAIN_TARGETS.get(length, 3.0)}", "prefill": "T5 >= 4", "decode": ""}[name]
            share = work[name] / times["archc"] / peak
            speeds = f"{count / times['archc']:.0f} / {count / times['transformers']:.0f}, {share:.2f}"
            rows.append((f"{title} {name} {length}", f"{ratio:.2f}x ({speeds})", target))
    show(f"{title}: one sequence, float32, {torch.get_num_threads()} threads", rows)


def memory(length: int) -> None:
    """T4: peak memory of one training step above the model, each in a process of its own."""
    peaks: dict[str, float] = {}
    for name in ("archc", "transformers"):
        command = [sys.executable, __file__, "--measure", name, "--lengths", str(length)]
        peaks[name] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    ratio = peaks["archc"] / peaks["transformers"]
    gib = {name: f"{value / 2**30:.2f} GiB" for name, value in peaks.items()}
    row = (f"hybrid training memory {length}", f"{ratio:.3f} ({gib['archc']} / {gib['transformers']})", "T4 <= 0.25")
    show("Peak memory above weights and gradients", [("what", "archc over transformers", "target"), row])


def measure(name: str, length: int) -> None:
    """Print the bytes that a training step adds to the peak of a process that holds the model and its gradients."""
    model = archc_model(SMALL_KIMI) if name == "archc" else kimi_peer()
    short = torch.randint(0, 32000, (1, 16))
    trainer(model, short, peer=name != "archc")()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer(model, torch.randint(0, 32000, (1, length)), peer=name != "archc")()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="512,1024,2048")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["llama", "hybrid", "memory"])
    parser.add_argument("--measure", choices=["archc", "transformers"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    lengths = [int(text) for text in options.lengths.split(",")]
    if options.measure:
        measure(options.measure, lengths[0])
        return
    if options.only in (None, "llama"):
        compare("llama", SMALL_LLAMA, llama_peer, lengths, options.rounds)
    if options.only in (None, "hybrid"):
        compare("hybrid", SMALL_KIMI, kimi_peer, lengths, options.rounds)
    if options.only in (None, "memory"):
        memory(max(lengths))


if __name__ == "__main__":
    main()
