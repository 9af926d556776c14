"""Placement as a real session decides it, where this machine has a GPU that onnxruntime can use.

The session is made in a process of its own: its log tells what no call returns, and a kernel that breaks while it is
built takes nothing along.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from archc_exporters.onnx.placement.copies import Copy
from archc_exporters.onnx.placement.report import HARMLESS, OffNode, Placement, grouped, leaving, sorted_counts
from archc_exporters.onnx.placement.summary import external_files
from archc_exporters.onnx.placement.tables import CPU, CUDA

DRIVERS = ("libcuda.so.1", "nvcuda.dll")
NAMES: dict[str, str] = {CUDA: "cuda", CPU: "cpu"}
_TIMEOUT_S = 1800
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_COPY = re.compile(r"AddCopyNode\] Add (Memcpy\w+) (?:after|before) (.*) for CUDAExecutionProvider")
_WHY = (
    ("no-kernel", re.compile(r"CUDA kernel not found in registries for Op type: (?:\S+) node name: (.*)$")),
    ("kernel-refuses-node", re.compile(r"Fallback to CPU execution provider for Op type: (?:\S+) node name: (.*)$")),
    (HARMLESS, re.compile(r"Force fallback to CPU execution for node: (.*?) because the CPU execution path")),
)


def can_ask(model: onnx.ModelProto, path: Path) -> bool:
    """Whether a session could be made: a GPU, an onnxruntime with its provider, and every file that the model refers to."""
    has_weights = all((path.parent / name).is_file() for name in external_files(model))
    return has_weights and CUDA in ort.get_available_providers() and has_device()


def has_device() -> bool:
    """Whether the NVIDIA driver is there and finds a device. onnxruntime would print an error where it does not."""
    for name in DRIVERS:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        return driver.cuInit(0) == 0
    return False


def ask_session(path: Path, predicted: Placement) -> Placement:
    """The placement of a session on this machine, with the limits of ``predicted``; ``predicted`` itself if none can be made."""
    with tempfile.TemporaryDirectory(prefix="archc-placement-") as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        command = [sys.executable, "-m", "archc_exporters.onnx.placement.live", str(path), str(answer)]
        ending = _run(command, log)
        text = _ANSI.sub("", log.read_text("utf-8", errors="replace"))
        found = json.loads(answer.read_text("utf-8")) if answer.exists() else {"error": ending}
    if "error" in found:
        return replace(predicted, source=f"{predicted.source}; a session on this machine failed: {found['error']}")
    return _placement(found, text, predicted)


def _run(command: list[str], log: Path) -> str:
    """Run the process with its output in ``log``; how it ended, in words."""
    with log.open("wb") as stream:
        try:
            done = subprocess.run(command, stdout=stream, stderr=stream, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"it took more than {_TIMEOUT_S} s"
    return f"its process ended with {done.returncode}"


def main(model: str, answer: str) -> None:
    """Make the session and write which provider took which node."""
    options = ort.SessionOptions()
    options.log_severity_level = 0
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    found: dict[str, Any] = {"onnxruntime": ort.__version__}
    try:
        session = ort.InferenceSession(model, options, providers=[CUDA, CPU])
        if CUDA not in session.get_providers():
            found["error"] = "onnxruntime could not load its CUDA provider"
        found["nodes"] = [
            [part.ep_name, node.domain, node.op_type, node.name]
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        ]
    except Exception as error:  # onnxruntime raises a family of its own, based on Exception itself.
        found["error"] = str(error)
    Path(answer).write_text(json.dumps(found), "utf-8")
    sys.stdout.flush()
    # Tearing the provider down takes seconds and changes nothing.
    os._exit(0)


def _placement(found: dict[str, Any], log: str, predicted: Placement) -> Placement:
    reasons = _reasons(log)
    details = {node.name: node.detail for node in predicted.off}
    counts: dict[str, Counter[str]] = {}
    off: list[OffNode] = []
    nodes: list[list[str]] = found["nodes"]
    for long, domain, op_type, name in nodes:
        op, provider = f"{domain}.{op_type}" if domain else op_type, NAMES.get(long, long)
        counts.setdefault(op, Counter())[provider] += 1
        if provider != "cuda":
            reason = reasons.get(name, "added by onnxruntime")
            harmless = reason == HARMLESS
            detail = details.get(name, reason)
            off.append(OffNode(name=name, op=op, provider=provider, reason=reason, detail=detail, harmless=harmless))
    kept = (limit for limit in predicted.limits if limit.severity != "leaves the GPU")
    return replace(
        predicted,
        source=f"a session of onnxruntime {found['onnxruntime']} on this machine's GPU",
        release=found["onnxruntime"],
        nodes=sorted_counts(counts),
        off=tuple(off),
        memcpy=tuple(_copies(log)),
        limits=(
            *kept,
            *grouped((node.op, node.name, leaving(node.op, node.detail)) for node in off if not node.harmless),
        ),
    )


def _reasons(log: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in log.splitlines():
        for reason, pattern in _WHY:
            if match := pattern.search(line):
                found.setdefault(match[1], reason)
    return found


def _copies(log: str) -> list[Copy]:
    found: list[Copy] = []
    for direction, value in _COPY.findall(log):
        op = "MemcpyFromHost" if direction == "MemcpyFromHost" else "MemcpyToHost"
        found.append(Copy(op=op, value=value, made_by="", read_by=""))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
