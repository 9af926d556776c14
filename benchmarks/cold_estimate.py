"""Times a cold ``archc estimate`` against the floor of its libraries and against transformers on the meta device.

Every measurement is a process of its own; the processes of a round follow each other, the order turning every round, so
that noise of the machine hits them alike. Byte code is cached for all of them in a folder of this run. Medians are
printed: wall and processor seconds, peak resident MiB, and wall over the floor's.

    python benchmarks/cold_estimate.py [--rounds 9] [--no-transformers]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = ("llama-3.1-405b", "deepseek-v3", "kimi-linear-48b-a3b")
TARGET_OVER_FLOOR = 1.3
TARGET_RSS_MIB = 40
TARGET_OVER_TRANSFORMERS = 20

BENCHMARKS = Path(__file__).resolve().parent
FLOOR_SPEC = BENCHMARKS.parent / "specs" / "kimi" / "kimi-linear-48b-a3b.yaml"

# The floor is imported, so that its byte code is cached as archc's is; a script is compiled at every start.
FLOOR = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
sys.argv = ["floor_spec", {str(FLOOR_SPEC)!r}]
from floor_spec import main
main()
"""

ARCHC = """
import sys
sys.argv = ["archc", "estimate", {name!r}]
from archc.cli.main import run
run()
"""

TRANSFORMERS = """
import torch
from transformers import DynamicCache, AutoModelForCausalLM
{config}
with torch.device("meta"), torch.no_grad():
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    cache = DynamicCache(config=config)
    {forward}
print(sum(p.numel() for p in model.parameters()))
def tensors(thing):
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for inner in thing.values():
            yield from tensors(inner)
    elif isinstance(thing, (list, tuple)):
        for inner in thing:
            yield from tensors(inner)
print(sum(t.numel() * t.element_size() for layer in cache.layers for t in tensors(vars(layer))))
"""
FORWARD = "model(input_ids=torch.zeros(1, 16, dtype=torch.long), past_key_values=cache, use_cache=True)"

CONFIGS = {
    "llama-3.1-405b": """
from transformers import LlamaConfig
config = LlamaConfig(vocab_size=128256, hidden_size=16384, intermediate_size=53248, num_hidden_layers=126,
    num_attention_heads=128, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072)
""",
    "deepseek-v3": """
from transformers import DeepseekV3Config
config = DeepseekV3Config(vocab_size=129280, hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048,
    num_hidden_layers=61, num_attention_heads=128, num_key_value_heads=128, n_shared_experts=1, n_routed_experts=256,
    num_experts_per_tok=8, n_group=8, topk_group=4, first_k_dense_replace=3, kv_lora_rank=512, q_lora_rank=1536,
    qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, max_position_embeddings=163840)
""",
    "kimi-linear-48b-a3b": """
from transformers import KimiLinearConfig
full = [4, 8, 12, 16, 20, 24, 27]
config = KimiLinearConfig(vocab_size=163840, hidden_size=2304, intermediate_size=9216, moe_intermediate_size=1024,
    num_hidden_layers=27, num_attention_heads=32, num_key_value_heads=32, num_shared_experts=1, kv_lora_rank=512,
    q_lora_rank=None, qk_rope_head_dim=64, v_head_dim=128, qk_nope_head_dim=128, num_experts=256,
    num_experts_per_token=8, model_max_length=1048576, first_k_dense_replace=1,
    linear_attn_config=dict(full_attn_layers=full, kda_layers=[i for i in range(1, 28) if i not in full],
        head_dim=128, num_heads=32, short_conv_kernel_size=4))
""",
}


class Sample:
    """What one process took."""

    def __init__(self, code: str, environment: dict[str, str]) -> None:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        )
        assert process.stderr is not None
        error = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        self.wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(error.decode())
        self.cpu_s = usage.ru_utime + usage.ru_stime
        self.rss_mib = usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--transformers-rounds", type=int, default=3)
    parser.add_argument("--no-transformers", action="store_true")
    options = parser.parse_args()
    codes = {"floor_spec": FLOOR, **{f"archc {name}": ARCHC.format(name=name) for name in MODELS}}
    slow: dict[str, str] = {}
    if not options.no_transformers:
        slow = {
            f"transformers {name}": TRANSFORMERS.format(config=config, forward=FORWARD)
            for name, config in CONFIGS.items()
        }
    with tempfile.TemporaryDirectory(prefix="archc-pyc-") as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        samples = measure({**codes, **slow}, options.rounds, environment, options.transformers_rounds, set(slow))
    report(samples)


def measure(
    codes: dict[str, str], rounds: int, environment: dict[str, str], slow_rounds: int, slow: set[str]
) -> dict[str, list[Sample]]:
    """Samples by name; the first start of each, which writes byte code, is thrown away."""
    for code in codes.values():
        Sample(code, environment)
    samples: dict[str, list[Sample]] = {name: [] for name in codes}
    names = list(codes)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            if name not in slow or number < slow_rounds:
                samples[name].append(Sample(codes[name], environment))
    return samples


def report(samples: dict[str, list[Sample]]) -> None:
    """Medians, their ratio to the floor, and the targets."""
    walls = {name: statistics.median(sample.wall_s for sample in found) for name, found in samples.items()}
    cpus = {name: statistics.median(sample.cpu_s for sample in found) for name, found in samples.items()}
    print(f"{'process':36} {'n':>3} {'wall s':>8} {'cpu s':>8} {'RSS MiB':>8} {'wall/floor':>11} {'cpu/floor':>10}")
    for name, found in samples.items():
        rss = max(sample.rss_mib for sample in found)
        over, cpu_over = walls[name] / walls["floor_spec"], cpus[name] / cpus["floor_spec"]
        print(f"{name:36} {len(found):3} {walls[name]:8.3f} {cpus[name]:8.3f} {rss:8.1f} {over:11.2f} {cpu_over:10.2f}")
    for model in MODELS:
        ours = f"archc {model}"
        over = walls[ours] / walls["floor_spec"]
        rss = max(sample.rss_mib for sample in samples[ours])
        line = f"{model}: {over:.2f}x floor (target {TARGET_OVER_FLOOR}), {rss:.1f} MiB (target {TARGET_RSS_MIB})"
        theirs = f"transformers {model}"
        if theirs in walls:
            line += f", {walls[theirs] / walls[ours]:.1f}x faster than transformers (target {TARGET_OVER_TRANSFORMERS})"
        print(line)


if __name__ == "__main__":
    main()
