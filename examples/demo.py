"""The whole promise on the tiny 3:1 KDA:MLA hybrid: estimate, build, export, run on onnxruntime, compare with torch.

python examples/demo.py OUT
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import archc
from archc.torch_backend.build import graph_of
from archc.torch_backend.step import Step
from archc_exporters.onnx.session import Conversation, load_session

SPEC = "tiny-kimi-linear"
BATCH, PROMPT, STEPS, MAX_MODEL_LEN = 2, 24, 8, 64


def run(*words: str) -> None:
    """Show a command and run it."""
    print(f"\n$ archc {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "archc", *words], check=True)


def main(out: Path) -> None:
    weights, exported, length = out / "weights", out / "onnx", str(MAX_MODEL_LEN)
    run("show", SPEC)
    run("estimate", SPEC, "--max-model-len", length)
    run("build", SPEC, "-o", str(weights), "--dtype", "f32", "--seed", "0")
    run("export", SPEC, "--weights", str(weights), "-o", str(exported), "--dtype", "f32", "--max-model-len", length)

    print(
        "\nThe same prompt through torch and through onnxruntime: one prefill, then greedy steps, caches carried along"
    )
    model = archc.load_weights(archc.build(SPEC, device="cpu"), weights)
    cache = archc.new_cache(model, batch=BATCH, max_model_len=MAX_MODEL_LEN)
    capacity = graph_of(model).capacity(MAX_MODEL_LEN)
    talk = Conversation(load_session(exported / "model.onnx"), batch=BATCH, capacity=capacity)
    held = sum(tensor.nbytes for tensor in cache.values()), sum(array.nbytes for array in talk.caches.values())
    print(f"caches: torch {held[0]:,} B, onnxruntime {held[1]:,} B")

    ids = torch.randint(0, 1024, (BATCH, PROMPT), generator=torch.Generator().manual_seed(0))
    past, worst = 0, 0.0
    for number in range(STEPS + 1):
        seq = ids.shape[1]
        with torch.no_grad():
            want = model(ids, Step.at(past, seq), cache).numpy()
        logits = talk.step(ids.numpy())
        difference = float(np.abs(logits - want).max())
        worst = max(worst, difference)
        kind = "decode " if number else "prefill"
        print(f"{kind} {seq:2d} tokens over {past:2d}: largest difference of the logits {difference:.1e}")
        past += seq
        ids = torch.from_numpy(logits[:, -1:].argmax(-1))
    if worst > 1e-4:
        raise SystemExit(f"torch and onnxruntime differ by {worst:.1e}")
    print(f"\nDone. {weights}: model.safetensors, spec.yaml, graph.json. {exported}: model.onnx, model.onnx.data.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out"))
