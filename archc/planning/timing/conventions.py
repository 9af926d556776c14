"""How times are estimated, in words: printed beside them, so that none is taken for a measurement."""

from __future__ import annotations

TIME_CONVENTIONS: dict[str, str] = {
    "estimate": (
        "a roofline, not a measurement: each op takes the longer of its FLOPs over peak x efficiency and its bytes over "
        "bandwidth x efficiency, one after the other; launches, waiting and latencies of links count nothing"
    ),
    "efficiency": (
        "shares of the vendor's dense peak, of the bandwidth and of the links that a good program reaches; they are "
        "assumptions (0.7, 0.8, 0.8), set by options; all at 1 is what no program can beat"
    ),
    "bytes": (
        "an op with counted work reads its inputs and weights and writes its outputs once, what lies between is fused, "
        "attention scores stay on the chip; of routed experts those that some token chooses, E (1 - (1 - k/E)^tokens); a "
        "decode step reads the cache, adds a row, and reads and writes a fixed state; a prefill writes what is kept"
    ),
    "training": (
        "one optimizer step over micro_batches passes of micro_batch_size sequences on each copy; backward is twice forward "
        "in FLOPs and bytes; full recomputation repeats the layers' forward; AdamW moves 28 bytes a parameter; with stages the "
        "step waits for pp - 1 passes more (GPipe, 1F1B)"
    ),
    "communication": (
        "by rings; overlap says what share of it is hidden behind work, 0 unless stated: partial sums are added up over tp "
        "behind each product that is cut along its inputs, experts are reached all to all, gradients are added up over dp once "
        "a step; over the links of a node where the group fits, else over the network; in training twice"
    ),
    "tokens": (
        "batch_size sequences are shared out over the copies of the model (dp), at least one each; tokens/s are those of all "
        "copies; with pp as many batches are in flight, so that the slowest stage sets the rate"
    ),
    "utilization": (
        "MFU: training FLOPs of the stated convention over time x dense peak x devices; HFU adds what recomputation repeats; "
        "energy: the vendor's power limit x time, PUE 1.0"
    ),
}
"""Topic -> what its numbers mean."""
