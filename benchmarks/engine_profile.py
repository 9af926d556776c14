"""Where a file's time goes: milliseconds by op type for one prompt and one decode step, medians over onnxruntime's own trace.

    python benchmarks/engine_profile.py FOLDER... [--tokens 512] [--threads 1] [--repeat 8] [--nodes]

Runs in the peers' environment. Several folders are put side by side. `--nodes` adds the ten most expensive nodes of each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
from engines import OnnxEngine

Times = dict[str, dict[str, list[float]]]


def profile(folders: list[Path], *, tokens: int, threads: int, repeat: int) -> dict[str, tuple[Times, dict[str, str]]]:
    """Folder -> (phase -> node -> microseconds of each run, node -> op type); the folders take turns."""
    with tempfile.TemporaryDirectory() as place:
        engines = {str(folder): _engine(folder, Path(place), tokens, threads) for folder in folders}
        ids = np.random.default_rng(0).integers(3, 250, (1, tokens))
        for engine in engines.values():
            engine.prefill(ids)
        for _ in range(repeat):
            for engine in engines.values():
                engine.prefill(ids)
                engine.resume()
                engine.decode(ids[0, :4])
        traces = {
            name: json.loads(Path(engine.session.end_profiling()).read_text()) for name, engine in engines.items()
        }
    return {name: _split(events) for name, events in traces.items()}


def _engine(folder: Path, place: Path, tokens: int, threads: int) -> OnnxEngine:
    width = onnx.load(folder / "model.onnx", load_external_data=False).graph.output[0].type.tensor_type.shape.dim[-1]
    return OnnxEngine(
        folder / "model.onnx",
        threads=threads,
        capacity=tokens + 64,
        vocab=width.dim_value,
        profile=str(place / f"{folder.parent.name}-{folder.name}"),
    )


def _split(events: list[dict]) -> tuple[Times, dict[str, str]]:
    """Kernel times by run: a run ends with its model_run event, and runs come as prompt, four steps, prompt, four steps, ..."""
    found: Times = {"prefill": defaultdict(list), "decode": defaultdict(list)}
    ops: dict[str, str] = {}
    runs = sorted(
        ((event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == "model_run"),
    )[1:]
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    kernels.sort(key=lambda event: event["ts"])
    position = 0
    for number, (begin, end) in enumerate(runs):
        phase = "prefill" if number % 5 == 0 else "decode"
        total = 0.0
        while position < len(kernels) and kernels[position]["ts"] <= end:
            event = kernels[position]
            position += 1
            if event["ts"] < begin or event["args"].get("op_name") == "If":
                continue
            name = f"{event['name'].removesuffix('_kernel_time')}"
            ops[name] = event["args"]["op_name"]
            found[phase][name].append(event["dur"])
            total += event["dur"]
        found[phase]["(between nodes)"].append(end - begin - total)
        found[phase]["(all)"].append(end - begin)
    return found, ops


def by_op(times: dict[str, list[float]], ops: dict[str, str]) -> dict[str, float]:
    """op type -> milliseconds of one run."""
    sums: dict[str, float] = defaultdict(float)
    for name, values in times.items():
        sums[ops.get(name, name)] += statistics.median(values) / 1e3
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=8)
    parser.add_argument("--nodes", action="store_true")
    options = parser.parse_args()
    shape = {"tokens": options.tokens, "threads": options.threads, "repeat": options.repeat}
    found = profile(options.folders, **shape)
    for phase in ("prefill", "decode"):
        tables = {name: by_op(times[phase], ops) for name, (times, ops) in found.items()}
        rows = sorted(
            {op for table in tables.values() for op in table},
            key=lambda op: -max(t.get(op, 0.0) for t in tables.values()),
        )
        print(f"\n{phase}, ms" + "".join(f"{name[-22:]:>24}" for name in tables))
        for op in rows:
            print(f"  {op:36}" + "".join(f"{table.get(op, 0.0):24.3f}" for table in tables.values()))
        if options.nodes:
            for name, (times, ops) in found.items():
                worst = sorted(
                    ((statistics.median(v) / 1e3, n) for n, v in times[phase].items() if n in ops), reverse=True
                )[:10]
                print(f"  {name}")
                for value, node in worst:
                    print(f"    {value:9.3f}  {ops[node]:28} {node}")


if __name__ == "__main__":
    main()
