"""Exports of published models at full width, without weights: time, memory, nodes, cache bytes, and placement on CUDA of a cut.

python benchmarks/full_width.py [--check PROGRAM]

PROGRAM (default ../shared/placement/check, skipped where there is none) loads a file with onnxruntime-gpu's own provider and
no GPU, says where each node goes, and runs the kernels' own checks of their inputs. A cut has a few layers of every kind.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS, GIB = 30, 2
LENGTH = 4096
# (spec, overrides that cut it, whether GroupQueryAttention makes chunks of a batch a call each)
MODELS = (
    ("kimi-linear-48b-a3b", ("stack.num_layers=4", "stack.mixer=kda*3 mla", "stack.ffn=dense moe*"), False),
    ("deepseek-v3", ("stack.num_layers=2", "stack.ffn=dense moe"), False),
    ("llama-3.1-405b", ("stack.num_layers=2",), True),
    ("gpt-oss-20b", ("stack.num_layers=2",), True),
    ("gemma-3-27b", ("stack.num_layers=7", "stack.mixer=local*5 global local"), True),
)


def export(name: str, out: Path, *extra: str) -> tuple[float, float, dict]:
    """(wall seconds, peak GiB, report) of one export in a process of its own."""
    words = ["export", name, "--no-weights", "--dtype", "bf16", "--provider", "cuda", "--no-check", "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    started = time.perf_counter()
    code = (
        "import resource, sys; from archc.cli.main import archc\n"
        "try: archc(sys.argv[1:])\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "-o", str(out), *extra], check=True, capture_output=True, text=True
    )
    assert before >= 0
    return time.perf_counter() - started, int(done.stderr.split()[-1]) / 2**20, json.loads(done.stdout)


def cache_bytes(report: dict) -> tuple[int, int]:
    """(bytes a token, bytes a sequence) of the file's cache inputs."""
    caches = report["caches"]
    return sum(cache["bytes_per_token"] for cache in caches), sum(cache["bytes_per_sequence"] for cache in caches)


def placed(check: Path, model: Path, batch: int, seq: int, past: int) -> str:
    """What onnxruntime-gpu's provider makes of a file: accepted, or the first thing that is wrong."""
    lengths = {"past_length": past, "seq_length": seq, "kv_length": past + seq, "max_length": past + seq}
    fills = [word for key, value in lengths.items() for word in ("--fill", f"{key}={value}")]
    words = [str(check), str(model), "--sparse-weights", "--fail-on-nokernel", "--fail-on-memcpy", "--no-optimized"]
    done = subprocess.run(
        [*words, "--run", f"batch={batch},seq={seq},capacity={LENGTH}", *fills], capture_output=True, text=True
    )
    lines = (done.stdout + done.stderr).splitlines()
    return "accepted" if done.returncode == 0 else next((line.strip() for line in lines if "FAILED" in line), "refused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=Path, default=ROOT.parent / "shared" / "placement" / "check")
    check = parser.parse_args().check
    folder = Path(tempfile.mkdtemp(prefix="archc-full-width-"))
    try:
        print(f"whole models, bf16 for cuda, no weights (targets: {SECONDS} s, {GIB} GiB)")
        for name, _, _ in MODELS:
            wall, peak, report = export(name, folder / name)
            token, sequence = cache_bytes(report)
            print(
                f"  {name:22} {wall:5.2f} s  {peak:.2f} GiB  {sum(report['nodes'].values()):5,} nodes  "
                f"caches {token:,} B a token + {sequence:,} B a sequence"
            )
        if not check.exists():
            print(f"placement is not checked: {check} is not there")
            return
        print("cuts at full width: what onnxruntime-gpu's provider says at (batch, seq, past)")
        for name, cut, by_row in MODELS:
            for chunks in ((), ("--batched-chunks",)) if by_row else ((),):
                words = [word for change in cut for word in ("--set", change)]
                out = folder / f"{name}-cut{'-'.join(chunks)}"
                export(name, out, "--max-model-len", str(LENGTH), *words, *chunks)
                for batch, seq, past in ((1, 1, 9), (1, 17, 9), (2, 17, 0), (2, 17, 9)):
                    if batch > 1 and past and by_row and not chunks:
                        continue
                    said = placed(check, out / "model.onnx", batch, seq, past)
                    print(f"  {name:22} {' '.join(chunks):17} ({batch}, {seq:2}, {past}): {said}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
