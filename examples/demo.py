"""The whole promise on the tiny 3:1 KDA:MLA hybrid: estimate, build, export, run on onnxruntime, compare with torch.

python examples/demo.py OUT
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import archc
from archc.torch_backend.step import Step

SPEC = "tiny-kimi-linear"
BATCH, PROMPT, STEPS, MAX_MODEL_LEN = 2, 24, 8, 64


def run(*words: str) -> None:
    """Show a command and run it."""
    print(f"\n$ archc {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "archc", *words], check=True)


def main(out: Path) -> None:
    weights, exported = out / "weights", out / "onnx"
    run("show", SPEC)
    run("estimate", SPEC, "--max-model-len", str(MAX_MODEL_LEN))
    run("build", SPEC, "-o", str(weights), "--dtype", "f32", "--seed", "0")
    run(
        "export",
        SPEC,
        "--weights",
        str(weights),
        "-o",
        str(exported),
        "--dtype",
        "f32",
        "--max-model-len",
        str(MAX_MODEL_LEN),
    )

    print(
        "\nThe same prompt through torch and through onnxruntime: one prefill, then greedy steps, caches carried along"
    )
    model = archc.build(SPEC, device="cpu")
    archc.load_weights(model, weights)
    session = onnxruntime.InferenceSession(str(exported / "model.onnx"), providers=["CPUExecutionProvider"])
    states = {i.name: i for i in session.get_inputs() if i.name.startswith("past_key_values.")}
    cache = archc.new_cache(model, batch=BATCH, max_model_len=MAX_MODEL_LEN)
    capacity = archc.torch_backend.build.graph_of(model).capacity(MAX_MODEL_LEN)
    sizes = {"batch": BATCH, "capacity": capacity}
    past = {n: np.zeros([sizes.get(d, d) for d in i.shape], np.float32) for n, i in states.items()}
    held = sum(tensor.nbytes for tensor in past.values())
    print(f"caches: torch {sum(t.nbytes for t in cache.values()):,} B, onnxruntime {held:,} B")

    ids = torch.randint(0, 1024, (BATCH, PROMPT), generator=torch.Generator().manual_seed(0))
    total, worst = 0, 0.0
    for number in range(STEPS + 1):
        seq = ids.shape[1]
        with torch.no_grad():
            want = model(ids, Step.at(total, seq), cache).numpy()
        lengths = {
            "input_ids": ids.numpy(),
            "past_length": np.full(BATCH, total),
            "seq_length": np.full(BATCH, seq),
            "kv_length": np.full(BATCH, total + seq),
            "max_length": np.array([total + seq]),
        }
        names = [o.name for o in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, {**lengths, **past}), strict=True))
        past = {name: outputs[name.replace("past_key_values", "present")] for name in past}
        difference = float(np.abs(outputs["logits"] - want).max())
        worst = max(worst, difference)
        kind = "prefill" if number == 0 else "decode "
        print(f"{kind} {seq:3d} tokens over {total:3d}: largest difference of the logits {difference:.1e}")
        total += seq
        ids = torch.from_numpy(outputs["logits"][:, -1:].argmax(-1))
    if worst > 1e-4:
        raise SystemExit(f"torch and onnxruntime differ by {worst:.1e}")
    print(
        f"\nDone: {out}/weights holds model.safetensors, spec.yaml and graph.json, {out}/onnx the ONNX file and its weights."
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out"))
