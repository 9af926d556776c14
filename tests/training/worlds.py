"""Plans that ``archc.train`` is run under, and the options that all have in common."""

from archc.planning.parallel import Parallel

STATED = {
    "steps": 2,
    "seq_len": 32,
    "batch_size": 4,
    "lr": 1e-3,
    "warmup_steps": 1,
    "held_out": 0.1,
    "eval_batches": 1,
    "overrides": ("tokenizer=bytes",),
}

PLANS = {
    2: {
        "tiny-llama": [
            "dp2",
            "dp2 zero=2",
            "dp2 micro_batch_size=1",
            "tp2",
            "tp2 recompute=full compile=1",
            "pp2 micro_batch_size=1",
            "cp2",
        ],
        "tiny-kimi-linear": ["dp2", "tp2", "pp2 micro_batch_size=2", "dp2 ep2"],
        "tiny-deepseek-v3": ["dp2", "tp2", "pp2 micro_batch_size=1", "dp2 ep2", "cp2", "dp2 ep2 recompute=full"],
    },
    4: {
        "tiny-llama": ["dp4", "dp2 tp2", "pp2 dp2", "pp2 tp2 micro_batch_size=2", "dp2 cp2", "tp2 cp2"],
        "tiny-kimi-linear": ["dp4", "dp2 tp2", "pp4 micro_batch_size=1", "dp4 ep4", "dp4 ep2"],
        "tiny-deepseek-v3": ["dp2 tp2", "pp2 dp2 ep2", "dp2 cp2 ep4", "dp4 ep2 recompute=selective"],
    },
}
"""World -> spec -> plans, as ``dp2 tp2 name=value``."""


def options_of(plan):
    """(ranks, further options) of a plan's text."""
    words = plan.split()
    ranks = {word[:2]: int(word[2:]) for word in words if "=" not in word}
    pairs = (word.split("=") for word in words if "=" in word)
    return Parallel(**ranks), {name: int(value) if value.isdigit() else value for name, value in pairs}


STEPS_EACH = 2
ON_THE_WAY = {**{name: value for name, value in STATED.items() if name != "steps"}, "schedule": "constant"}

CHAINS = {
    "tiny-llama": ["dp2 zero=2", "tp2", "pp2 micro_batch_size=1", "cp2"],
    "tiny-kimi-linear": ["tp2", "dp2 ep2", "pp2 micro_batch_size=2", "dp2"],
}
"""Spec -> plans of two ranks, each of which goes on where the one before it has stopped."""

WEIGHED = {
    2: {
        "tiny-llama": ["dp2", "tp2", "pp2", "cp2", "pp2 dtype=bfloat16"],
        "tiny-kimi-linear": ["tp2", "pp2 optimizer=muon"],
        "tiny-deepseek-v3": ["dp2 ep2", "tp2"],
        "tiny-gpt-oss": ["dp2 ep2 dtype=bfloat16"],
    },
    4: {"tiny-llama": ["dp2 tp2"], "tiny-deepseek-v3": ["dp4 ep2", "dp2 tp2 optimizer=sgd", "pp2 tp2"]},
}
"""World -> spec -> plans of which every rank's tensors are weighed."""
