"""Peak memory of `archc export` against the largest tensor that it writes: one layer of large models, from a file of zeros.

python benchmarks/export_memory.py [--folder DIR] [--small]

The input is a sparse file and takes no room; the output takes up to 6 GiB in DIR and is removed. `--small`: a model of seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

from archc.expansion import expand
from archc.spec.load import load_spec

CASES = (
    # (spec, overrides, dtype of the input and its bytes, dtype of the output)
    ("llama-3-70b", ("stack.num_layers=1",), "BF16", 2, "bf16"),
    ("kimi-linear-48b-a3b", ("stack.num_layers=2", "stack.mixer=kda"), "F32", 4, "f16"),
    ("gpt-oss-20b", ("stack.num_layers=2",), "F32", 4, "bf16"),
)
SMALL = (("tiny-llama", (), "F32", 4, "f16"),)
CHILD = """
import json, resource, sys, time
from archc.cli.main import archc
started = time.perf_counter()
try:
    archc(sys.argv[1:])
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Not ru_maxrss, which begins with that of the process that started this one.
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(json.dumps({"wall_s": time.perf_counter() - started, "cpu_s": used.ru_utime + used.ru_stime,
                      "peak_bytes": int(peak) * 1024}), file=sys.stderr)
"""


def sparse_file(path: Path, shapes: dict[str, tuple[int, ...]], dtype: str, bytes_each: int) -> None:
    """A safetensors file of zeros."""
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * bytes_each
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def measure(folder: Path, spec: str, overrides: tuple[str, ...], stored: str, bytes_each: int, dtype: str) -> str:
    """A line of the table."""
    graph = expand(load_spec(spec, overrides))
    weights, out = folder / "model.safetensors", folder / "out"
    sparse_file(weights, {name: param.shape for name, param in graph.params().items()}, stored, bytes_each)
    arguments = ["export", spec, "-o", str(out), "--weights", str(weights), "--dtype", dtype, "--no-check"]
    arguments += [word for override in overrides for word in ("--set", override)]
    ran = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=True)
    found = json.loads(ran.stderr.splitlines()[-1])
    proto = onnx.load(out / "model.onnx", load_external_data=False)
    lengths = (int(e.value) for tensor in proto.graph.initializer for e in tensor.external_data if e.key == "length")
    largest, written = max(lengths), (out / "model.onnx.data").stat().st_size
    shutil.rmtree(out)
    gib, mib = 1 << 30, 1 << 20
    return (
        f"| {' '.join((spec, *overrides))} | {stored} to {dtype} | {written / gib:.2f} GiB | {largest / gib:.2f} GiB "
        f"| {found['peak_bytes'] / mib:.0f} MiB | {found['cpu_s']:.1f} s | {found['wall_s']:.1f} s |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--small", action="store_true", help="a model of seconds: to see that it runs")
    given = parser.parse_args()
    print("| model | dtypes | written | largest tensor | peak memory | CPU | wall |\n|---|---|---|---|---|---|---|")
    for case in SMALL if given.small else CASES:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            print(measure(Path(folder), *case), flush=True)


if __name__ == "__main__":
    main()
