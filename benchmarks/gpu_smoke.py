"""What only a GPU can show, in one run of under five minutes, without a network: values, placement, speed, long contexts.

    python benchmarks/gpu_smoke.py [--only values,...] [--seconds 280] [--provider cpu --small]

Needs onnxruntime-gpu with CUDA 13, and torch; torch with CUDA if it is there, else the CPU's is the judge. Each section is a
process with a time limit of its own, so that one that hangs or crashes leaves the others alone. The summary is the last
line, JSON, and is written to $OUT/gpu_smoke.json where OUT is set. Exit 0: all sections passed; 1: one failed; 2: there is
no GPU that onnxruntime can use, and a line says what is missing. `--provider cpu --small` runs the same code without one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECTIONS = {"values": 110, "speed": 60, "context": 110}
"""Section -> seconds that it may take."""
NEEDED = ("torch", "onnxruntime", "onnx", "onnx_ir", "safetensors", "archc", "archc_exporters")


def missing(provider: str) -> list[str]:
    """What keeps this script from running, a line each."""
    lines = [f"{name} is not installed" for name in NEEDED if importlib.util.find_spec(name) is None]
    if lines or provider == "cpu":
        return lines
    import onnxruntime as ort

    from archc_exporters.runtime.provider import NAMES, cuda_devices

    if NAMES["cuda"] not in ort.get_available_providers():
        lines.append(
            f"onnxruntime {ort.__version__} has no CUDA provider: pip install 'onnxruntime-gpu[cuda,cudnn]==1.31.1'"
        )
    elif not cuda_devices():
        lines.append("no CUDA device: the driver is missing, or shows none")
    return lines


def environment(provider: str) -> dict[str, Any]:
    """Versions, and the device in nvidia-smi's words."""
    import onnxruntime as ort
    import torch

    found: dict[str, Any] = {
        "python": sys.version.split()[0],
        "onnxruntime": ort.__version__,
        "torch": torch.__version__,
    }
    found["torch_sees_cuda"] = torch.cuda.is_available()
    if provider == "cuda":
        fields = "--query-gpu=name,driver_version,memory.total,memory.used"
        try:
            said = subprocess.run(
                ["nvidia-smi", fields, "--format=csv,noheader"], capture_output=True, text=True, timeout=20
            )
            found["device"] = said.stdout.strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            found["device"] = f"nvidia-smi failed: {error}"
    return found


def run_section(name: str, options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """The section's data, or why there is none and what came before."""
    words = [sys.executable, "-W", "ignore", str(HERE / "gpu_sections.py"), name, "--provider", options.provider]
    if options.small:
        words.append("--small")
    begin, error = time.perf_counter(), ""
    with tempfile.TemporaryFile("w+") as said:
        try:
            code = subprocess.run(
                words, stdout=said, stderr=subprocess.STDOUT, timeout=limit, cwd=HERE.parent
            ).returncode
            error = f"exit {code}"
        except subprocess.TimeoutExpired:
            error = f"stopped after {limit:.0f} s"
        said.seek(0)
        lines = said.read().splitlines()
    plain = [line for line in lines if not line.startswith(("JSON ", "PART "))]
    print("".join(f"  {line}\n" for line in plain), end="", flush=True)
    seconds = round(time.perf_counter() - begin, 1)
    whole = [json.loads(line[5:]) for line in lines if line.startswith("JSON ")]
    if whole:
        return whole[-1] | {"seconds": seconds}
    parts = [json.loads(line[5:]) for line in lines if line.startswith("PART ")]
    return {"passed": False, "error": f"{error}: {' '.join(plain[-3:])[-400:]}", "parts": parts, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, comma-separated")
    parser.add_argument("--seconds", type=float, default=280, help="of all sections together")
    parser.add_argument("--provider", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models, short contexts: to see that the script runs")
    options = parser.parse_args()
    problems = missing(options.provider)
    if problems:
        print("gpu_smoke: nothing was run: " + "; ".join(problems))
        return 2
    begin = time.perf_counter()
    summary: dict[str, Any] = {
        "provider": options.provider,
        "environment": environment(options.provider),
        "sections": {},
    }
    print(json.dumps(summary["environment"]))
    for name in options.only.split(","):
        left = options.seconds - (time.perf_counter() - begin)
        print(f"\n== {name}", flush=True)
        if left < 5:
            summary["sections"][name] = {"passed": False, "error": "no time was left", "seconds": 0.0}
            print("  no time was left")
            continue
        summary["sections"][name] = run_section(name, options, min(left, SECTIONS[name]))
        found = summary["sections"][name]
        print(
            f"  {'passed' if found['passed'] else 'FAILED: ' + found.get('error', 'see above')} ({found['seconds']} s)"
        )
    summary["passed"] = all(section["passed"] for section in summary["sections"].values())
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / "gpu_smoke.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary))
    return 0 if summary["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
