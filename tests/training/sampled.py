"""What the ranks of ``sampling_worker.py`` and the test that starts them agree on."""

from archc.planning.parallel import Parallel
from archc.training.options import TrainOptions

CASES = [
    ("tiny-llama", Parallel(tp=2, pp=2)),
    ("tiny-kimi-linear", Parallel(dp=2, pp=2)),
    ("tiny-deepseek-v3", Parallel(dp=4, ep=2)),
    ("tiny-qwen3-next", Parallel(tp=2, dp=2)),
]
PROMPTS = [[5, 6, 7], [9, 8, 7, 6]]
NEW_TOKENS = 6


def options_of(parallel):
    return TrainOptions(steps=2, seq_len=16, batch_size=4, seed=3, parallel=parallel)
