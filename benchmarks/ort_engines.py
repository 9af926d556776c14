"""R1 to R3: exported models on onnxruntime's CPU, archc's and its peers' over equal weights, taking turns in one process.

    python benchmarks/ort_engines.py [--rounds 15] [--threads 2,1] [--lengths 512,2048] [--only llama|hybrid|latent]

R1, llama-like: mobius, onnxruntime-genai's builder and its runtime, transformers eager. R2, the KDA hybrid: transformers
eager, and mobius on the gated DeltaNet twin, because nobody else exports KDA. R3, latent attention: mobius, transformers
eager. Sequences of one, float32, IO-bound, past and present in one buffer where the file allows it. With one thread,
processor time is compared; with more, wall time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from deployed import MODELS, prepare
from export_peers import Row, commands
from peer_env import HERE, STORE, peer_python, run
from peers import show

import archc

STEPS = 16
VOCAB = 32000
GROWTH_LENGTHS = (512, 1024, 2048, 4096)
Job = dict[str, Any]


def exported(model: str, peers: tuple[str, ...]) -> Path:
    """The folder of a model's exports: archc's are made anew, its peers' once."""
    prepare(model, STORE / model)
    out = STORE / model / "exports"
    words = commands(model, out)
    for name in ("archc", "archc-pruned"):
        shutil.rmtree(out / name, ignore_errors=True)
        out.mkdir(exist_ok=True)
        command = [word for word in words["archc"] if word != str(out / "archc")] + [str(out / name)]
        run(command if name == "archc" else [*command[:-2], "--prune-head", *command[-2:]])
    for peer in peers:
        folder = {"genai-builder": "genai"}.get(peer, peer)
        if not (out / folder / "model.onnx").exists():
            run(words[peer])
    return out


class Rounds:
    """What the engines of one job took."""

    def __init__(self, job: Job) -> None:
        place = STORE / "job.json"
        place.write_text(json.dumps(job))
        result = STORE / "result.json"
        script = str(HERE / "engine_rounds.py")
        run([peer_python(), "-W", "ignore", script, str(place), str(result)], threads=job["threads"])
        found = json.loads(result.read_text())
        self.job, self.engines = job, found["engines"]
        self._clock = 1 if job["threads"] == 1 else 0
        self.bandwidth = found["bandwidth_bytes"] / self._median(found["probes"]["bandwidth"])
        self.gemm = found["gemm_flops"] / self._median(found["probes"]["gemm"])

    def _median(self, samples: list[list[float]]) -> float:
        return statistics.median(sample[self._clock] for sample in samples)

    def seconds(self, engine: str, phase: str) -> float:
        """Median seconds of the prompt, or of one decode step."""
        return self._median(self.engines[engine][phase]) / (STEPS if phase == "decode" else 1)

    def ratio(self, phase: str, engine: str, other: str) -> float:
        """How many times faster an engine is: the median over rounds of that round's ratio."""
        pairs = zip(self.engines[engine][phase], self.engines[other][phase], strict=True)
        return statistics.median(b[self._clock] / a[self._clock] for a, b in pairs)

    def best(self, phase: str, names: tuple[str, ...]) -> str:
        """The fastest of some engines."""
        return min(names, key=lambda name: self.seconds(name, phase))

    def table(self) -> str:
        """Every engine's own figures, for whoever reads the ratios."""
        lines = [f"  {'engine':26} {'prefill tok/s':>14} {'decode tok/s':>13} {'logits off':>11} {'cache bytes':>12}"]
        for name, values in self.engines.items():
            tokens = self.job["engines"][name].get("tokens", self.job["tokens"])
            speeds = f"{tokens / self.seconds(name, 'prefill'):14.0f} {1 / self.seconds(name, 'decode'):13.1f}"
            lines.append(
                f"  {name:26} {speeds} {values['max_logit_difference']:11.1e} {values.get('cache_bytes', ''):>12}"
            )
        clock = "processor" if self._clock else "wall"
        machine = f"{self.bandwidth / 1e9:.1f} GB/s read, {self.gemm / 1e9:.0f} GFLOP/s GEMM"
        return "\n".join([*lines, f"  {clock} time, {self.job['threads']} thread(s): {machine} in this run"])


def job(
    engines: dict[str, Any], *, tokens: int, threads: int, rounds: int, capacity: int | None = None, chunk: int = 0
) -> Job:
    """A job of engine_rounds.py."""
    return {
        "engines": engines,
        "tokens": tokens,
        "capacity": capacity or tokens + 64,
        "vocab": VOCAB,
        "rounds": rounds,
        "steps": STEPS,
        "threads": threads,
        "chunk": chunk,
    }


def files(out: Path, names: tuple[str, ...], judge: str) -> dict[str, Any]:
    """The engines of some exported folders."""
    return {name: {"kind": "onnx", "path": str(out / name), "judge": judge} for name in names}


def eager(model: str, *, last_only: bool, name: str = "eager") -> dict[str, Any]:
    """transformers on the same weights."""
    checkpoint = str(STORE / model / "checkpoint")
    return {"kind": "eager", "path": checkpoint, "last_only": last_only, "judge": name}


def bound(model: str, run: Rounds, engine: str) -> tuple[float, float]:
    """(share of the run's bandwidth, the same if the token table were read too) that decode of an engine reaches."""
    size = archc.estimate(archc.loads_spec(MODELS[model].spec), dtype="float32").to_json()["weights"]["bytes"]
    spec = MODELS[model].spec
    table = 0 if "tie_word_embeddings: true" in spec else VOCAB * 512 * 4
    caches = run.engines[engine].get("cache_bytes", 0)
    rate = run.seconds(engine, "decode") * run.bandwidth
    return (size - table + caches) / rate, (size + caches) / rate


def gemm_share(model: str, run: Rounds, engine: str, *, pruned: bool) -> float:
    """FLOPs of the prompt, with all logits unless pruned, over those that a GEMM would do in the time."""
    spec = archc.loads_spec(MODELS[model].spec)
    tokens = run.job["tokens"]
    # The estimate's prompt ends in one row of logits.
    flops = archc.estimate(spec, max_model_len=tokens).to_json()["flops"]["prefill"]
    width = 768 if model == "small-llama" else 512
    head = 2 * width * VOCAB * (tokens - 1)
    return (flops + (0 if pruned else head)) / run.seconds(engine, "prefill") / run.gemm


def llama(tokens: int, threads: int, rounds: int) -> tuple[str, list[Row], Rounds]:
    """R1."""
    out = STORE / "small-llama" / "exports"
    engines = files(out, ("archc", "archc-pruned", "mobius", "genai"), "eager")
    engines["genai runtime"] = {"kind": "runtime", "path": str(out / "genai"), "judge": "eager"}
    engines["eager"] = eager("small-llama", last_only=False)
    run = Rounds(job(engines, tokens=tokens, threads=threads, rounds=rounds))
    theirs = ("mobius", "genai", "genai runtime")
    rows: list[Row] = []
    for phase in ("decode", "prefill"):
        best = run.best(phase, theirs)
        rows.append((f"R1 {phase}", f"{run.ratio(phase, 'archc', best):.2f}x the best, {best}", ">= 1.0 (gate 0.9)"))
    share, _ = bound("small-llama", run, "archc")
    wanted = threads == 2
    rows += [
        ("R1 prefill, last logits", f"{run.ratio('prefill', 'archc-pruned', 'mobius'):.2f}x mobius", ">= 1.25"),
        ("R1 decode over eager", f"{run.ratio('decode', 'archc', 'eager'):.2f}x", ">= 2.5"),
        ("R1 decode of bandwidth", f"{share:.2f}", ">= 0.75" if wanted else ""),
        (
            "R1 prefill of GEMM",
            f"{gemm_share('small-llama', run, 'archc', pruned=False):.2f}",
            ">= 0.80" if wanted else "",
        ),
        _logits("R1", run),
    ]
    return f"R1, llama-like, {tokens} tokens", rows, run


def _logits(target: str, run: Rounds) -> Row:
    names = [name for name in ("archc", "archc-pruned") if name in run.engines]
    ours = max(run.engines[name]["max_logit_difference"] for name in names)
    scale = run.engines["archc-pruned"]["logit_scale"]
    return f"{target} logits off eager's", f"{ours:.1e} at most, of {scale:.2f}", "<= 1e-5"


def hybrid(tokens: int, threads: int, rounds: int) -> tuple[str, list[Row], Rounds]:
    """R2."""
    out, twin = (STORE / model / "exports" for model in ("small-kimi", "small-gdn"))
    engines = files(out, ("archc", "archc-pruned"), "eager")
    engines["eager"] = eager("small-kimi", last_only=False)
    engines["eager, last logits"] = {**eager("small-kimi", last_only=True), "judge": "eager"}
    for name, folder in (("twin archc", "archc"), ("twin mobius", "mobius")):
        engines[name] = {"kind": "onnx", "path": str(twin / folder), "judge": "twin eager"}
    engines["twin eager"] = eager("small-gdn", last_only=False, name="twin eager")
    run = Rounds(job(engines, tokens=tokens, threads=threads, rounds=rounds))
    share, anchor = bound("small-kimi", run, "archc")
    wanted = threads == 2
    rows = [
        ("R2 decode over eager", f"{run.ratio('decode', 'archc', 'eager'):.2f}x", ">= 3"),
        ("R2 prefill over eager, all logits", f"{run.ratio('prefill', 'archc', 'eager'):.2f}x", ">= 4"),
        (
            "R2 prefill over eager, last logits",
            f"{run.ratio('prefill', 'archc-pruned', 'eager, last logits'):.2f}x",
            ">= 4",
        ),
        ("R2 decode of bandwidth", f"{share:.2f} ({anchor:.2f} with the token table)", ">= 0.75" if wanted else ""),
        ("R2 decode step over mobius' twin", f"{1 / run.ratio('decode', 'archc', 'twin mobius'):.2f}", "<= 1.1"),
        ("R2 prompt over mobius' twin", f"{1 / run.ratio('prefill', 'archc', 'twin mobius'):.2f}", "<= 1.1"),
        ("R2 the twin itself, decode", f"{run.ratio('decode', 'twin archc', 'twin mobius'):.2f}x mobius", ""),
        ("R2 the twin itself, prefill", f"{run.ratio('prefill', 'twin archc', 'twin mobius'):.2f}x mobius", ""),
        _logits("R2", run),
    ]
    return f"R2, KDA hybrid, {tokens} tokens", rows, run


def growth(threads: int, rounds: int) -> tuple[str, list[Row], Rounds]:
    """R2: what a longer context adds to a decode step, the hybrid's two latent layers of eight against a model of eight."""
    engines: dict[str, Any] = {}
    for model, lengths in (("small-kimi", GROWTH_LENGTHS), ("small-mla", (GROWTH_LENGTHS[0], GROWTH_LENGTHS[-1]))):
        for tokens in lengths:
            name = f"{model} {tokens}"
            folder = str(STORE / model / "exports" / "archc-pruned")
            engines[name] = {"kind": "onnx", "path": folder, "judge": name, "tokens": tokens}
    run = Rounds(
        job(
            engines,
            tokens=GROWTH_LENGTHS[0],
            threads=threads,
            rounds=rounds,
            capacity=GROWTH_LENGTHS[-1] + 64,
            chunk=512,
        )
    )
    first, last = GROWTH_LENGTHS[0], GROWTH_LENGTHS[-1]
    steps = {tokens: 1e3 * run.seconds(f"small-kimi {tokens}", "decode") for tokens in GROWTH_LENGTHS}
    added = steps[last] - steps[first]
    latent = 1e3 * (run.seconds(f"small-mla {last}", "decode") - run.seconds(f"small-mla {first}", "decode")) * 2 / 8
    rows = [
        ("R2 decode, ms at " + ", ".join(map(str, steps)), ", ".join(f"{value:.2f}" for value in steps.values()), ""),
        (f"R2 growth {first} to {last}", f"{added:.2f} ms; 2 of 8 latent layers alone: {latent:.2f} ms", "no more"),
    ]
    return "R2, decode step over the context", rows, run


def latent(tokens: int, threads: int, rounds: int) -> tuple[str, list[Row], Rounds]:
    """R3. A long prompt goes in by chunks: whole, its logits and scores are gigabytes an engine."""
    out = STORE / "small-mla" / "exports"
    is_long = tokens >= 4096
    engines = files(out, ("archc-pruned", "mobius") if is_long else ("archc", "archc-pruned", "mobius"), "eager")
    engines["eager"] = eager("small-mla", last_only=is_long)
    chunk = 512 if is_long else 0
    run = Rounds(job(engines, tokens=tokens, threads=threads, rounds=rounds, chunk=chunk))
    latent_bytes = 8 * (128 + 32) * 4
    ours, rows_held = run.engines["archc-pruned"]["cache_bytes"], tokens + 64
    rows = [
        ("R3 decode", f"{run.ratio('decode', 'archc-pruned', 'mobius'):.2f}x mobius", ">= 2" if is_long else ">= 1.0"),
        ("R3 prefill, last logits", f"{run.ratio('prefill', 'archc-pruned', 'mobius'):.2f}x mobius", ""),
        ("R3 decode over eager", f"{run.ratio('decode', 'archc-pruned', 'eager'):.2f}x", ""),
        ("R3 cache bytes a row over the latent's", f"{ours / rows_held / latent_bytes:.4f}", "1"),
        (
            "R3 mobius' cache over archc's",
            f"{run.engines['mobius']['cache_bytes'] * rows_held / tokens / ours:.1f}x",
            "",
        ),
        _logits("R3", run),
    ]
    if not is_long:
        rows.insert(1, ("R3 prefill", f"{run.ratio('prefill', 'archc', 'mobius'):.2f}x mobius", ""))
    return f"R3, latent attention, {tokens} tokens", rows, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", default="2,1")
    parser.add_argument("--lengths", default="512,2048", help="of the llama-like model's prompt")
    parser.add_argument("--only", choices=["llama", "hybrid", "latent"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all seconds there too")
    options = parser.parse_args()
    rounds = options.rounds
    data: list[dict[str, Any]] = []
    parts: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
        "llama": (("small-llama", ("mobius", "genai-builder")),),
        "hybrid": (("small-kimi", ()), ("small-gdn", ("mobius",)), ("small-mla", ())),
        "latent": (("small-mla", ("mobius",)),),
    }
    for part, needed in parts.items():
        if options.only not in (None, part):
            continue
        for model, peers in needed:
            exported(model, peers)
        for threads in map(int, options.threads.split(",")):
            if part == "llama":
                made = (llama(int(tokens), threads, rounds) for tokens in options.lengths.split(","))
            elif part == "hybrid":
                made = (make(threads) for make in (lambda t: hybrid(512, t, rounds), lambda t: growth(t, rounds)))
            else:
                made = (latent(tokens, threads, rounds) for tokens in (512, 4096))
            for title, rows, found in made:
                show(f"{title}, {threads} thread(s), {rounds} rounds", [("what", "archc", "target"), *rows])
                print(found.table(), flush=True)
                data.append({"title": title, "threads": threads, "rows": rows, "engines": found.engines})
    if options.json:
        options.json.write_text(json.dumps(data))


if __name__ == "__main__":
    sys.exit(main())
