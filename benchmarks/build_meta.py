"""B1: building the 48B hybrid on the meta device, first and again, archc and transformers in processes of their own.

    python benchmarks/build_meta.py [--rounds 5]

`import torch, archc` and `import torch, transformers` are excluded, and so is reading the spec or making the config; the
first build includes what each side then loads lazily. Processes alternate, medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from peers import show

ARCHC = """
import time
import torch, archc
spec = archc.load_spec("kimi-linear-48b-a3b")
times = []
for _ in range(6):
    begin = time.perf_counter()
    model = archc.build(spec)
    times.append(time.perf_counter() - begin)
print(times[0], sorted(times[1:])[2], sum(p.numel() for p in model.parameters()))
"""

TRANSFORMERS = """
import os, time
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers
# The class defaults place 6 latent layers; the release has 7, counted from 0: 3, 7, ..., 23, 26.
latent = {*range(3, 27, 4), 26}
kinds = ["full_attention" if i in latent else "linear_attention" for i in range(27)]
config = transformers.AutoConfig.for_model("kimi_linear", layer_types=kinds)
times = []
for _ in range(6):
    begin = time.perf_counter()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    times.append(time.perf_counter() - begin)
print(times[0], sorted(times[1:])[2], sum(p.numel() for p in model.parameters()))
"""


def measure(code: str) -> tuple[float, float, int]:
    """(first build, median of the next five, parameters) of one process."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True)
    first, warm, parameters = done.stdout.split()[-3:]
    return float(first), float(warm), int(parameters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    found: dict[str, list[tuple[float, float, int]]] = {"archc": [], "transformers": []}
    for _ in range(rounds):
        found["archc"].append(measure(ARCHC))
        found["transformers"].append(measure(TRANSFORMERS))
    first, warm = ({name: statistics.median(run[i] for run in runs) for name, runs in found.items()} for i in (0, 1))
    rows = [("what", "archc / transformers", "target")]
    for name, times, target in (("first build", first, "<= 0.1"), ("warm build", warm, "<= 1.5")):
        ours, theirs = times["archc"], times["transformers"]
        rows.append((name, f"{ours / theirs:.3f} ({1e3 * ours:.0f} / {1e3 * theirs:.0f} ms)", target))
    rows.append(("parameters", f"{found['archc'][0][2]:,} / {found['transformers'][0][2]:,}", "equal"))
    show("B1: Kimi-Linear-48B-A3B on the meta device", rows)


if __name__ == "__main__":
    main()
