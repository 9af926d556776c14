"""Training on one GPU, in under four minutes: bf16, torch.compile, flash-linear-attention's kernels, memory against the estimate.

    python benchmarks/gpu_train.py [--only values,llama,hybrid] [--seconds 235] [--cpu]

Needs torch with CUDA; the hybrid's fast cases need flash-linear-attention (pip install flash-linear-attention) and say so where
it is missing. Everything runs through archc.train: data, loss without logits, clipping, fused AdamW, FSDP2's bf16 over float32
weights. Each section is a process with a time limit of its own, and what it has found so far is kept if it ends early. The last
line is the summary as JSON, which is also written to $OUT/gpu_train.json where OUT is set. Exit 0: every section passed; 1: one
failed; 2: there is no CUDA device, and one line says so. ``--cpu`` runs the same code at a tiny size on the CPU, without
torch.compile: to see that the script runs, no figure of it means anything.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import archc
from archc.planning.training.estimate import estimate_training
from archc.torch_backend.operators import fla
from archc.training.module import TrainingModel
from archc.training.sample_text import sample_text
from archc.training.watching.watcher import Quiet, Record

HERE = Path(__file__).resolve().parent
SECTIONS = {"values": 50, "llama": 70, "hybrid": 115}
"""Section -> seconds that it may take."""
WARM_STEPS, STEPS = 3, 8
SMALL_STEPS = 5
VALUE_TOLERANCE = {"float32": 2e-3, "bfloat16": 1e-1}
"""Largest difference of a gradient from the CPU's in float32, over the weight's largest one; TF32 is off."""

SPEC = """
spec_version: 1
name: {name}
tokenizer: {{kind: external, vocab_size: {ids}}}
embedding: {{hidden_size: {width}, tie_word_embeddings: false}}
position: {position}
norm: {{kind: rms_norm, eps: 1e-5}}
max_position_embeddings: 32768
mixers:
  gqa: {{kind: gqa, num_heads: {heads}, num_kv_heads: {kv_heads}, head_dim: {head}}}
  kda: {{kind: kda, num_heads: {heads}, head_dim: {head}, conv_kernel: 4}}
  mla:
    kind: mla
    num_heads: {heads}
    kv_lora_rank: {rank}
    qk_nope_head_dim: {head}
    qk_rope_head_dim: {rope}
    v_head_dim: {head}
ffns: {{mlp: {{kind: swiglu, intermediate_size: {inner}}}}}
stack: {{num_layers: {layers}, block: pre_norm, mixer: {mixer}, ffn: mlp}}
"""
SIZES = ("ids", "width", "heads", "kv_heads", "head", "rank", "rope", "inner", "layers")
LARGE: dict[str, int] = dict(zip(SIZES, (32000, 1024, 8, 4, 128, 512, 64, 2816, 16), strict=True))
SMALL: dict[str, int] = dict(zip(SIZES, (256, 64, 2, 1, 32, 32, 16, 96, 4), strict=True))
MIXERS = {"llama": ("gqa", "{kind: rope, theta: 10000.0}"), "hybrid": ("(kda*3 mla)*", "none")}


@dataclass(frozen=True)
class Case:
    """One run of archc.train. ``fla``: by flash-linear-attention's kernels, where a model has a use for them."""

    compile: bool
    recompute: str = "none"
    fla: bool = True


CASES = {
    "llama": (Case(compile=False), Case(compile=True), Case(compile=True, recompute="selective")),
    "hybrid": (
        Case(compile=False, fla=False),
        Case(compile=False),
        Case(compile=True),
        Case(compile=True, recompute="selective"),
    ),
}


def spec_of(name: str, *, small: bool) -> str:
    """A model's YAML."""
    mixer, position = MIXERS[name]
    return SPEC.format(name=name, mixer=mixer, position=position, **(SMALL if small else LARGE))


def has_fla() -> bool:
    """Whether flash-linear-attention is installed."""
    return find_spec("fla") is not None


def set_kernels(*, with_fla: bool) -> None:
    """Let KDA run on flash-linear-attention's kernels, or on archc's own operator."""
    usable: Any = _USABLE if with_fla else lambda v, log_decay: False
    fla.usable = usable


_USABLE = fla.usable


class Steps(Quiet):
    """Keeps what archc.train says of each step."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def on_step(self, record: Record) -> None:
        self.records.append(dict(record))


def trained(name: str, case: Case, *, small: bool) -> dict[str, Any]:
    """Figures of one run: tokens a second, MFU, memory and what the estimate says of it, the first and the last loss."""
    seq_len, batch_size = (64, 2) if small else (4096, 8)
    device = "cpu" if small else "cuda"
    text, spec, steps = sample_text(), spec_of(name, small=small), Steps()
    tokenizer = archc.loads_spec(spec.replace("kind: external", "kind: char")).tokenizer.train([text])
    set_kernels(with_fla=case.fla)
    if not small:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "text.txt").write_text(text, encoding="utf-8")
        (Path(place) / "spec.yaml").write_text(spec)
        archc.train(
            Path(place) / "spec.yaml",
            data=Path(place) / "text.txt",
            tokenizer=tokenizer,
            steps=SMALL_STEPS if small else WARM_STEPS + STEPS,
            seq_len=seq_len,
            batch_size=batch_size,
            lr=3e-3 if small else 3e-4,
            warmup_steps=0,
            dtype="bfloat16",
            compile=case.compile and not small,
            recompute=case.recompute,  # type: ignore[arg-type]
            device=device,
            watchers=[steps],
        )
    said = estimate_training(
        archc.loads_spec(spec),
        micro_batch_size=batch_size,
        max_model_len=seq_len,
        dtype="bfloat16",
        zero=3,
        recompute=case.recompute,
        loss="fused",
        kernels="cpu" if small else "cuda",
    )
    measured = steps.records[WARM_STEPS:]
    step_s = statistics.median(record["step_s"] for record in measured)
    return {
        "model": name,
        **asdict(case),
        "tokens_per_s": seq_len * batch_size / step_s,
        "mfu": measured[-1].get("mfu"),
        "first_step_s": steps.records[0]["step_s"],
        "memory_bytes": measured[-1]["memory_bytes"],
        "estimated_bytes": said.peak_bytes,
        "first_loss": steps.records[0]["loss"],
        "last_loss": measured[-1]["loss"],
    }


def runs_section(name: str, *, small: bool) -> dict[str, Any]:
    """All cases of a model, each printed when it is there."""
    found: list[dict[str, Any]] = []
    missing: list[str] = []
    for case in CASES[name]:
        if name == "hybrid" and case.fla and not small and not has_fla():
            missing.append(f"{case}: flash-linear-attention is not installed")
            continue
        one = trained(name, case, small=small)
        found.append(one)
        print("PART " + json.dumps(one), flush=True)
        print(line_of(one), flush=True)
    return {
        "passed": bool(found) and all(one["last_loss"] < one["first_loss"] for one in found),
        "runs": found,
        "missing": missing,
    }


def line_of(one: dict[str, Any]) -> str:
    """A run as a row of a table."""
    kernels = ("fla" if one["fla"] else "own") if one["model"] == "hybrid" else "-"
    mfu = "-" if one["mfu"] is None else f"{one['mfu']:.1%}"
    share = one["memory_bytes"] / one["estimated_bytes"]
    return (
        f"{one['model']:7} compile {'yes' if one['compile'] else 'no ':3} recompute {one['recompute']:9} kernels {kernels:3} "
        f"{one['tokens_per_s']:10,.0f} tok/s  MFU {mfu:>6}  memory {one['memory_bytes'] / 2**30:6.2f} GiB, "
        f"{share:.2f} of the estimate  loss {one['first_loss']:.3f} to {one['last_loss']:.3f}"
    )


def values_section(*, small: bool) -> dict[str, Any]:
    """Loss and gradients of small models on the device against the CPU's in float32, in each dtype and by each kernel."""
    device = "cpu" if small else "cuda"
    torch.backends.cuda.matmul.allow_tf32 = False
    found: list[dict[str, Any]] = []
    for name in MIXERS:
        judge = gradients(name, "cpu", "float32")
        for dtype, tolerance in VALUE_TOLERANCE.items():
            for with_fla in (False, True) if name == "hybrid" and (small or has_fla()) else (False,):
                set_kernels(with_fla=with_fla)
                loss, grads = gradients(name, device, dtype)
                apart = max(
                    float((grad - judge[1][key]).abs().max() / judge[1][key].abs().max()) for key, grad in grads.items()
                )
                one = {"model": name, "dtype": dtype, "fla": with_fla, "loss": loss, "apart": apart}
                one |= {"loss_apart": abs(loss - judge[0]), "is_good": apart < tolerance}
                found.append(one)
                print("PART " + json.dumps(one), flush=True)
                print(
                    f"{name:7} {dtype:9} fla {with_fla!s:5} loss {loss:.4f}, gradients apart by {apart:.1e} of the largest"
                )
    return {"passed": all(one["is_good"] for one in found), "runs": found}


def gradients(name: str, device: str, dtype: str) -> tuple[float, dict[str, torch.Tensor]]:
    """A small model's loss of random ids and its gradients, on the CPU in float32; weights are the same for all."""
    model: Any = archc.build(archc.loads_spec(spec_of(name, small=True)), device="cpu", seed=0)
    model = archc.cast(model, dtype).to(device)
    ids = torch.randint(0, SMALL["ids"], (2, 128), generator=torch.Generator().manual_seed(0)).to(device)
    weight = torch.tensor(1 / ids.numel(), device=device)
    loss = TrainingModel(model)({"input_ids": ids}, ids.roll(-1, 1), weight)
    loss.backward()
    grads = {key: param.grad.float().cpu() for key, param in model.named_parameters() if param.grad is not None}
    return float(loss), grads


def environment() -> dict[str, Any]:
    """Versions, and the device by torch's name."""
    found: dict[str, Any] = {"python": sys.version.split()[0], "torch": torch.__version__}
    try:
        found["flash-linear-attention"] = version("flash-linear-attention")
    except PackageNotFoundError:
        found["flash-linear-attention"] = None
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return found


def run_section(name: str, limit_s: float, *, small: bool) -> dict[str, Any]:
    """What a section's process says, or why it ended and what came before."""
    words = [
        sys.executable,
        "-W",
        "ignore",
        str(Path(__file__).resolve()),
        "--section",
        name,
        *(["--cpu"] if small else []),
    ]
    begin, error = time.perf_counter(), ""
    with tempfile.TemporaryFile("w+") as said:
        try:
            code = subprocess.run(words, stdout=said, stderr=subprocess.STDOUT, timeout=limit_s, check=False).returncode
            error = f"exit {code}"
        except subprocess.TimeoutExpired:
            error = f"stopped after {limit_s:.0f} s"
        said.seek(0)
        lines = said.read().splitlines()
    plain = [line for line in lines if not line.startswith(("JSON ", "PART "))]
    print("".join(f"  {line}\n" for line in plain[-40:]), end="", flush=True)
    seconds = round(time.perf_counter() - begin, 1)
    whole = [json.loads(line[5:]) for line in lines if line.startswith("JSON ")]
    if whole:
        return whole[-1] | {"seconds": seconds}
    parts = [json.loads(line[5:]) for line in lines if line.startswith("PART ")]
    return {"passed": False, "error": f"{error}: {' '.join(plain[-3:])[-400:]}", "runs": parts, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, comma-separated")
    parser.add_argument("--seconds", type=float, default=235, help="of all sections together")
    parser.add_argument("--cpu", action="store_true", help="tiny models on the CPU: to see that the script runs")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.section:
        section = values_section(small=options.cpu) if options.section == "values" else None
        print("JSON " + json.dumps(section or runs_section(options.section, small=options.cpu)), flush=True)
        return 0
    if not options.cpu and not torch.cuda.is_available():
        print(f"gpu_train: nothing was run: torch {torch.__version__} finds no CUDA device")
        return 2
    begin = time.perf_counter()
    summary: dict[str, Any] = {"environment": environment(), "sections": {}}
    print(json.dumps(summary["environment"]))
    for name in options.only.split(","):
        left_s = options.seconds - (time.perf_counter() - begin)
        print(f"\n== {name}", flush=True)
        if left_s < 5:
            summary["sections"][name] = {"passed": False, "error": "no time was left", "seconds": 0.0}
            print("  no time was left")
            continue
        limit_s = left_s if options.cpu else min(left_s, SECTIONS[name])
        summary["sections"][name] = run_section(name, limit_s, small=options.cpu)
    summary["seconds"] = round(time.perf_counter() - begin, 1)
    text = json.dumps(summary)
    if "OUT" in os.environ:
        (Path(os.environ["OUT"]) / "gpu_train.json").write_text(text)
    print(f"\n{text}")
    return 0 if all(one["passed"] for one in summary["sections"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
