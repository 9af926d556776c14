"""R1's decode with every engine in a process of its own, taking turns: where its memory lies moves a rate by a third.

python benchmarks/decode_apart.py [--turns 8] [--tokens 512] [--threads 2]

In one process (ort_engines.py) each engine keeps the pages that it was given when it was loaded, for all rounds; here every turn
draws anew. Ratios are medians over turns. Needs the files that ort_engines.py has made.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

STEPS, REPEATS, VOCAB = 16, 12, 32000
ENGINES = ("archc", "mobius", "genai", "genai runtime")


def measure(name: str, tokens: int, threads: int) -> float:
    """Median seconds of a step; runs in the peers' environment."""
    import numpy as np
    from engines import OnnxEngine, RuntimeEngine
    from peer_env import STORE

    place = STORE / "small-llama" / "exports"
    capacity = tokens + 64
    if name == "genai runtime":
        engine = RuntimeEngine(place / "genai", threads=threads, capacity=capacity)
    else:
        engine = OnnxEngine(place / name / "model.onnx", threads=threads, capacity=capacity, vocab=VOCAB)
    ids = np.random.default_rng(0).integers(0, VOCAB, (1, tokens))
    draws = np.random.default_rng(1).integers(0, VOCAB, STEPS)
    engine.prefill(ids)
    samples: list[float] = []
    for _ in range(REPEATS):
        engine.resume()
        started = time.perf_counter()
        engine.decode(draws)
        samples.append((time.perf_counter() - started) / STEPS)
    return statistics.median(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(measure(options.engine, options.tokens, options.threads))
        return
    from peer_env import peer_python, run

    seconds: dict[str, list[float]] = {name: [] for name in ENGINES}
    words = [str(Path(__file__).resolve()), "--tokens", str(options.tokens), "--threads", str(options.threads)]
    for turn in range(options.turns):
        for name in (*ENGINES[turn % 4 :], *ENGINES[: turn % 4]):
            done = run([peer_python(), "-W", "ignore", *words, "--engine", name], threads=options.threads)
            seconds[name].append(float(done.stdout.split()[-1]))
    print(f"decode at {options.tokens} tokens, {options.threads} threads, {options.turns} processes each")
    for name in ENGINES:
        rates = sorted(1 / value for value in seconds[name])
        ratios = [theirs / ours for ours, theirs in zip(seconds["archc"], seconds[name], strict=True)]
        print(
            f"  {name:14} {statistics.median(rates):6.1f} tok/s ({rates[0]:.1f} to {rates[-1]:.1f})"
            f"   archc over it {statistics.median(ratios):.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
