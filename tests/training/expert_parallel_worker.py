"""One rank of a model whose experts are shared out: ``python expert_parallel_worker.py RANK WORLD RENDEZVOUS``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from archc import Parallel
from archc.torch_backend.leaves.moe import Route
from tests.torch_backend.examples import FFNS, MIXERS, small_spec
from tests.training.compared import as_rank, compare, say_losses, shallow


def crowd(model):
    """All rows go to experts 0 and 1, so that one rank gets them all."""
    for module in model.modules():
        if isinstance(module, Route):
            module.e_score_correction_bias.copy_(torch.tensor([1e3, 1e3] + [0.0] * 6))


CASES = {
    2: [
        ("tiny-deepseek-v3", Parallel(dp=2, ep=2), {}),
        ("tiny-deepseek-v3", Parallel(dp=2, ep=2), {"change": crowd, "idle": True}),
        ("tiny-kimi-linear", Parallel(dp=2, ep=2), {"mode": "selective"}),
        ("tiny-gpt-oss", Parallel(cp=2, ep=2), {"mode": "full"}),
    ],
    4: [
        ("tiny-deepseek-v3", Parallel(dp=4, ep=2), {"mode": "full"}),
        ("tiny-kimi-linear", Parallel(dp=4, ep=4), {}),
        ("tiny-deepseek-v3", Parallel(dp=2, cp=2, ep=4), {"change": crowd, "idle": True}),
        ("weight on input", Parallel(dp=4, ep=2), {}),
    ],
}
RUNS = {
    2: [("tiny-deepseek-v3", Parallel(dp=2, ep=2), {"micro_batch_size": 2, "recompute": "selective"})],
    4: [("tiny-kimi-linear", Parallel(dp=2, pp=2, ep=2), {"micro_batch_size": 2})],
}


def main(size):
    for name, parallel, options in CASES[size]:
        spec = small_spec(MIXERS["gqa"], FFNS["moe weight on input"]) if name == "weight on input" else shallow(name)
        compare(spec, parallel, **options)
        print(f"equal: {name}, {parallel}", flush=True)
    for name, parallel, options in RUNS[size]:
        say_losses(name, parallel, **options)


if __name__ == "__main__":
    as_rank(main)
