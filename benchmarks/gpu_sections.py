"""The sections of gpu_smoke.py, one a process: ``python benchmarks/gpu_sections.py NAME --provider cuda [--small]``.

Lines that begin with PART are data as they come, the last line begins with JSON and is all of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from archc.expansion import expand
from archc.spec.load import loads_spec
from archc_exporters.onnx.export import export
from archc_exporters.onnx.placement.check import check_provider
from archc_exporters.runtime.bench import bench
from archc_exporters.runtime.model import load
from tests.gpu import values

LLAMA = """
spec_version: 1
name: llama-8-layers
tokenizer: {{kind: external, vocab_size: 32000}}
embedding: {{hidden_size: {hidden}, tie_word_embeddings: false}}
position: {{kind: rope, theta: 10000.0}}
norm: {{kind: rms_norm, eps: 1e-5}}
max_position_embeddings: 8192
mixers: {{attn: {{kind: gqa, num_heads: {heads}, num_kv_heads: {groups}, head_dim: 64}}}}
ffns: {{mlp: {{kind: swiglu, intermediate_size: {inner}}}}}
stack: {{num_layers: 8, block: pre_norm, mixer: attn, ffn: mlp}}
"""
LATENT = """
spec_version: 1
name: {name}
tokenizer: {{kind: external, vocab_size: 32000}}
embedding: {{hidden_size: {hidden}, tie_word_embeddings: false}}
position: none
norm: {{kind: rms_norm, eps: 1e-5}}
max_position_embeddings: 1050624
mixers:
  kda: {{kind: kda, num_heads: {heads}, head_dim: {head}}}
  mla:
    {{kind: mla, num_heads: {heads}, kv_lora_rank: {rank}, qk_nope_head_dim: {head}, qk_rope_head_dim: 64, v_head_dim: {head}}}
ffns: {{mlp: {{kind: swiglu, intermediate_size: {inner}}}}}
stack: {{num_layers: {layers}, block: pre_norm, mixer: {mixer}, ffn: mlp}}
cache: {{policy: full, state_dtype: float32}}
"""
LARGE = {"hidden": 2048, "heads": 16, "groups": 4, "head": 128, "rank": 512, "inner": 5632, "layers": 16}
SMALL = {"hidden": 128, "heads": 2, "groups": 1, "head": 64, "rank": 64, "inner": 192, "layers": 4}
CONTEXTS = (4096, 16384, 65536, 262144, 1048576)
PROMPTS = (4096, 16384, 65536)
CHUNK = 2048
STEPS = 16


def part(**data: Any) -> dict[str, Any]:
    """Print data that should be known even if the section does not end."""
    print("PART " + json.dumps(data), flush=True)
    return data


def values_section(provider: values.Provider, small: bool) -> dict[str, Any]:
    """Tiny exports of five families in both 16-bit dtypes against torch; every node on the provider."""
    dtypes = ("float16",) if provider == "cpu" else ("float16", "bfloat16")
    families = list(values.FAMILIES)[:2] if small else list(values.FAMILIES)
    found: list[dict[str, Any]] = []
    for dtype in dtypes:
        for family in families:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    one = values.check(family, dtype, provider, Path(folder))
                except Exception as error:  # the other cases should still be seen
                    found.append(
                        part(family=family, dtype=dtype, is_good=False, error=f"{type(error).__name__}: {error}")
                    )
                    print(f"{family:12} {dtype:9} FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
                    continue
            found.append(part(**one.to_json()))
            verdict = (
                "ok" if one.is_good else "TOO FAR OFF" if one.error > one.bound else f"LEAVES: {', '.join(one.away)}"
            )
            print(
                f"{family:12} {dtype:9} off {one.error:.1e} (bound {one.bound:.1e}, torch itself {one.torch_error:.1e}), "
                f"nodes {one.places}, {one.memcpy} copies, says {one.source}: {verdict}",
                flush=True,
            )
    return {"passed": all(one["is_good"] for one in found), "cases": found}


def zeros(spec: str, folder: Path, provider: values.Provider) -> Path:
    """A folder whose weights are zeros in a sparse file: made in a second, and as much to read as any others."""
    export(
        expand(loads_spec(spec)),
        folder,
        provider=provider,
        dtype="float16",
        no_weights=True,
        prune_head=True,
        check=False,
    )
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    ends = [0]
    for tensor in model.graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if where:
            ends.append(int(where.get("offset", 0)) + int(where["length"]))
    with (folder / "model.onnx.data").open("wb") as file:
        file.truncate(max(ends))
    return folder


def speed_section(provider: values.Provider, small: bool) -> dict[str, Any]:
    """Prefill and decode of a llama-like model and of the hybrid, beside the bandwidth's bound; their placement."""
    sizes = SMALL if small else LARGE
    hybrid = LATENT.format(name="hybrid", mixer="(kda*3 mla)*", **sizes)
    found: dict[str, Any] = {}
    for name, spec in (("llama", LLAMA.format(**sizes)), ("hybrid", hybrid)):
        with tempfile.TemporaryDirectory() as place:
            folder = zeros(spec, Path(place) / "out", provider)
            where = check_provider(folder / "model.onnx", provider)
            rounds = 2 if small else 5
            tokens = 64 if small else 2048
            run = bench(
                folder, prompt_tokens=tokens, new_tokens=STEPS, rounds=rounds, chunk_size=tokens, provider=provider
            )
            away = [node.op for node in where.away]
            found[name] = part(
                name=name, bench=run.to_json(), places=where.counts(), away=away, memcpy=len(where.memcpy)
            )
            print(
                f"{name:8} prefill {run.prefill.median:9.0f} tok/s ({tokens} tokens), decode {run.decode.median:7.1f} tok/s, "
                f"{run.share_of_bound:.2f} of {run.bandwidth_bytes_per_second / 1e9:.0f} GB/s; nodes {where.counts()}, "
                f"{len(where.memcpy)} copies",
                flush=True,
            )
    return {"passed": all(not one["away"] for one in found.values()), "models": found}


def context_section(provider: values.Provider, small: bool) -> dict[str, Any]:
    """Three KDA layers to one of latent attention against latent attention alone: decode, caches and prefill by context."""
    sizes = SMALL if small else LARGE
    contexts, prompts = ((128, 512), (256,)) if small else (CONTEXTS, PROMPTS)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        models = {}
        for name, mixer in (("hybrid", "(kda*3 mla)*"), ("all latent", "mla")):
            spec = LATENT.format(name=name.replace(" ", "-"), mixer=mixer, **sizes)
            models[name] = load(zeros(spec, Path(place) / name, provider), provider=provider)
        for context in contexts:
            for name, model in models.items():
                try:
                    found.append(part(name=name, **decode_at(model, context)))
                except Exception as error:  # memory may end here, which is a finding too
                    found.append(part(name=name, context=context, error=str(error)[:300]))
                print(_line(found[-1]), flush=True)
        for tokens in prompts:
            for name, model in models.items():
                try:
                    found.append(part(name=name, **prompt_of(model, tokens)))
                except Exception as error:
                    found.append(part(name=name, prompt=tokens, error=str(error)[:300]))
                print(_line(found[-1]), flush=True)
    steps = {(one["name"], one.get("context")): one["step_ms"] for one in found if "step_ms" in one}
    for context in contexts:
        pair = [steps.get((name, context)) for name in ("hybrid", "all latent")]
        if all(pair):
            print(f"at {context:9,}: all-latent decode is {pair[1] / pair[0]:.2f}x the hybrid's step", flush=True)  # type: ignore[operator]
    return {"passed": bool(steps), "runs": found}


def decode_at(model: Any, context: int) -> dict[str, Any]:
    """A decode step as if ``context`` tokens lay in the caches, which hold zeros: the work is that of any numbers."""
    engine = model.engine(1, context + 64)
    engine.lengths[:] = context
    token = np.ones((1, 1), np.int64)
    times: list[float] = []
    for _ in range(STEPS + 4):
        begin = time.perf_counter()
        engine.step(token)  # its logits are read back, so the step has ended
        times.append(time.perf_counter() - begin)
    step = 1e3 * statistics.median(times[4:])
    return {"context": context, "step_ms": step, "cache_bytes": engine.cache_bytes, "device_mib": device_mib()}


def prompt_of(model: Any, tokens: int) -> dict[str, Any]:
    """Tokens a second of a prompt in chunks; a chunk before the clock starts warms up."""
    chunk = min(CHUNK, tokens)
    ids = np.ones((1, chunk), np.int64)
    model.engine(1, chunk).step(ids)
    engine = model.engine(1, tokens)
    begin = time.perf_counter()
    for _ in range(tokens // chunk):
        engine.step(ids)
    seconds = time.perf_counter() - begin
    return {"prompt": tokens, "prefill_tokens_per_second": tokens / seconds, "device_mib": device_mib()}


def device_mib() -> int | None:
    """MiB in use on the device, of all processes; None where nvidia-smi does not say."""
    try:
        words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(words, capture_output=True, text=True, timeout=10).stdout.split()[0])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None


def _line(one: dict[str, Any]) -> str:
    if "error" in one:
        return f"{one['name']:11} {one.get('context', one.get('prompt')):>9,}: FAILED {one['error']}"
    if "prompt" in one:
        return f"{one['name']:11} {one['prompt']:>9,}: prefill {one['prefill_tokens_per_second']:9.0f} tok/s"
    size = one["cache_bytes"] / 2**20
    start = f"{one['name']:11} {one['context']:>9,}: {one['step_ms']:8.2f} ms a step"
    return f"{start}, caches {size:9.1f} MiB, device {one['device_mib']} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=["values", "speed", "context"])
    parser.add_argument("--provider", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    section = {"values": values_section, "speed": speed_section, "context": context_section}[options.section]
    print("JSON " + json.dumps(section(options.provider, options.small)), flush=True)


if __name__ == "__main__":
    main()
