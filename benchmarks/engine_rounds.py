"""One process, several engines over equal weights, taking turns: the part of ort_engines.py that runs in the peers' environment.

    python benchmarks/engine_rounds.py JOB.json OUT.json

A job is {"engines": {name: {"kind": "onnx" | "eager" | "runtime", "path", "judge": the engine whose logits count}},
"tokens", "capacity", "vocab", "rounds", "steps", "threads", "chunk": tokens of the prompt a call, 0 for all of them}; an
engine may have "last_only", and its own "tokens". What comes out are (wall, processor) seconds by engine and round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy as np
import torch
from engines import Bandwidth, EagerEngine, Engine, Gemm, OnnxEngine, RuntimeEngine

CHECKED_STEPS = 4


def load(engine: dict[str, Any], job: dict[str, Any]) -> Engine:
    """The engine of an entry of the job."""
    path, threads, capacity, chunk = Path(engine["path"]), job["threads"], job["capacity"], job.get("chunk", 0)
    if engine["kind"] == "eager":
        return EagerEngine(path, last_only=engine.get("last_only", False), chunk=chunk)
    if engine["kind"] == "runtime":
        return RuntimeEngine(path, threads=threads, capacity=capacity)
    return OnnxEngine(path / "model.onnx", threads=threads, capacity=capacity, vocab=job["vocab"], chunk=chunk)


def logits(engine: Engine, ids: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The last token's logits of the prompt, then those of some steps, (1 + steps, vocab)."""
    rows = [engine.prefill(ids)[0, -1].copy()]
    if isinstance(engine, RuntimeEngine):
        return np.stack(rows)
    return np.stack([*rows, *(engine.decode(token.reshape(1))[0, -1].copy() for token in tokens)])


def timed(run: Any) -> tuple[float, float]:
    """(wall, processor) seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    rng = np.random.default_rng(0)
    prompts = {
        name: np.random.default_rng(1).integers(3, job["vocab"], (1, entry.get("tokens", job["tokens"])))
        for name, entry in job["engines"].items()
    }
    tokens = rng.integers(3, job["vocab"], job["steps"])
    found: dict[str, dict[str, Any]] = {}
    engines: dict[str, Engine] = {}
    for name, entry in job["engines"].items():
        begin = time.perf_counter()
        engines[name] = load(entry, job)
        found[name] = {"load_s": time.perf_counter() - begin, "prefill": [], "decode": []}
    said = {name: logits(engine, prompts[name], tokens[:CHECKED_STEPS]) for name, engine in engines.items()}
    for name, rows in said.items():
        judge = said[job["engines"][name]["judge"]]
        found[name]["max_logit_difference"] = float(np.abs(rows - judge[: len(rows)]).max())
        found[name]["logit_scale"] = float(np.abs(judge).max())
    for name, engine in engines.items():
        if isinstance(engine, OnnxEngine):
            found[name]["cache_bytes"] = engine.cache_bytes()
    bandwidth, gemm = Bandwidth(), Gemm(job["threads"])
    probes: dict[str, list[tuple[float, float]]] = {"bandwidth": [], "gemm": []}
    names = list(engines)
    for number in range(-1, job["rounds"]):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            engine = engines[name]
            prefill = timed(lambda engine=engine, ids=prompts[name]: engine.prefill(ids))
            engine.resume()
            engine.decode(tokens[:2])
            decode = timed(lambda engine=engine: engine.decode(tokens))
            if number >= 0:
                found[name]["prefill"].append(prefill)
                found[name]["decode"].append(decode)
            time.sleep(0.05)  # until the threads of this engine have stopped spinning
        probes["bandwidth"].append(timed(bandwidth.measure))
        probes["gemm"].append(timed(gemm.measure))
    rates = {"bandwidth_bytes": bandwidth.BYTES, "gemm_flops": gemm.FLOPS}
    Path(sys.argv[2]).write_text(json.dumps({"engines": found, "probes": probes, **rates}))


if __name__ == "__main__":
    main()
