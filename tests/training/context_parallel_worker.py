"""One rank of a model whose sequences are cut: ``python context_parallel_worker.py RANK WORLD RENDEZVOUS``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import archc
from archc import Parallel
from archc.torch_backend.build import graph_of
from archc.training.parallel import context
from tests.torch_backend.examples import GQA, MIXERS, assert_close, ids_for, lively, small_spec
from tests.training.compared import SEQ, as_rank, compare, say_losses, shallow

CP2, CP4 = Parallel(cp=2), Parallel(cp=4)
SHIPPED = {
    2: [
        ("tiny-llama", CP2, {}),
        ("tiny-deepseek-v3", CP2, {"mode": "selective"}),
        ("tiny-gpt-oss", CP2, {"mode": "full", "seq": 64}),
        # Weights that are divided by their sum magnify rounding.
        ("tiny-scores", CP2, {"dtype": torch.float64}),
    ],
    4: [
        ("tiny-llama", CP4, {"mode": "full"}),
        ("tiny-llama", Parallel(cp=2, dp=2), {}),
        ("tiny-deepseek-v3", CP4, {}),
        ("tiny-gpt-oss", CP4, {"seq": 64}),
    ],
}
RUNS = {
    2: [("tiny-deepseek-v3", CP2, {"micro_batch_size": 2, "recompute": "selective"})],
    4: [
        ("tiny-llama", Parallel(cp=2, pp=2), {"micro_batch_size": 2}),
        ("tiny-deepseek-v3", Parallel(cp=2, tp=2), {}),
    ],
}
SMALL = (
    "gqa short window",
    "gqa short chunk",
    "gqa window of 1",
    "gqa sinks in a chunk",
    "gqa soft cap in a window",
    "gqa unit norm",
    "gqa forgetting",
    "mla forgetting",
    "gqa slopes in a window",
    "gqa slopes and sinks in a chunk",
)
RELATIVE = f"{{{GQA}, position: {{kind: relative_bias, num_buckets: 8, max_distance: 10}}}}"


YOCO = (
    "embedding.hidden_size=32",
    "tokenizer.vocab_size=64",
    "mixers.local={kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, sliding_window: 5}",
    "ffns.mlp.intermediate_size=48",
    "stack.num_layers=4",
    "stack.mixer=local global reuse*2",
    "cache.dtype=float32",
)


def check_cached(spec, world):
    """Over a cache a cut model is as before: every rank runs all tokens."""
    plain, model = lively(spec), lively(spec)
    context.cut(model, graph_of(model), world)
    ids = ids_for(model, 2, SEQ)
    cache = archc.new_cache(model, batch=2, max_model_len=SEQ)
    with torch.no_grad():
        found = [model(ids[:, :9], archc.Step.at(0, 9), cache), model(ids[:, 9:], archc.Step.at(9, SEQ - 9), cache)]
        assert_close(torch.cat(found, 1), plain(ids), 1e-5)


def main(size):
    cases = list(SHIPPED[size])
    if size == 2:
        cases += [(name, CP2, {}) for name in (*SMALL, "relative bias", "an earlier layer's keys")]
    for name, parallel, options in cases:
        if name == "an earlier layer's keys":
            spec = archc.load_spec("demo-yoco", YOCO)
        elif name in SMALL or name == "relative bias":
            spec = small_spec(RELATIVE if name == "relative bias" else MIXERS[name])
        else:
            spec = shallow(name)
        world = compare(spec, parallel, **options)
        if not options and size == 2:
            check_cached(spec, world)
        print(f"equal: {name}, {parallel}", flush=True)
    # The form of CUDA, which torch makes a mask of here.
    context.LOWER_RIGHT.append("cpu")
    for name in ("tiny-llama", "tiny-deepseek-v3") if size == 4 else ():
        compare(shallow(name), CP4)
        print(f"equal: {name} without numbers", flush=True)
    context.LOWER_RIGHT.pop()
    for name, parallel, options in RUNS[size]:
        say_losses(name, parallel, **options)


if __name__ == "__main__":
    as_rank(main)
