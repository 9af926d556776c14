"""How the numbers are counted, in words: printed beside them, so that none can be read two ways."""

from __future__ import annotations

CONVENTIONS: dict[str, str] = {
    "parameters": (
        "total: trainable, a tied weight once, without extra prediction layers (mtp) and saved buffers (untrainable); "
        "active: without the routed experts that a token does not visit, with shared experts, router, embedding, head; "
        "non_embedding: without what comes before the first layer"
    ),
    "weights": "every weight and saved buffer in the stated dtype, those whose dtype is fixed in their own; without mtp",
    "cache": (
        "used: what the formula needs for the whole length; allocated: the tensors that torch and the ONNX inputs hold; "
        "paged: tokens in whole blocks for each sequence and layer, fixed states whole; "
        "bytes_per_token: growth once every window is full; bytes_per_source_token: what a token of the encoder takes"
    ),
    "flops": (
        "multiply-add = 2; counted: linear layers, attention scores and values, short convolutions, linear attention, "
        "routers, experts, head; not counted: norms, activations, softmax, rotation, embedding look-up, sampling"
    ),
    "pairs": (
        "needed: only the query-key pairs that the mask, window or chunk lets through, a prefix counted as causal; "
        "_dense: the whole rectangle that a masked product computes"
    ),
    "form": (
        "prefill and train_step: latent attention expanded, delta rule in chunks; "
        "decode: latent attention absorbed, delta rule one token a step"
    ),
    "steps": (
        "prefill: max_model_len new tokens from an empty cache, the head for the last one; "
        "decode: one token after max_model_len - 1; forward: a bidirectional stack over max_model_len tokens; "
        "an encoder that a decoder reads is given source_len tokens in a prefill and in training; "
        "train_step: forward and backward of batch x max_model_len, backward = 2 x forward, nothing recomputed"
    ),
    "formulas": (
        "seq: new tokens of each sequence; past: tokens before them, which the cache has; source: tokens that the encoder is "
        "given with them; memory: all tokens of the encoder that the decoder reads"
    ),
}
"""Topic -> what its numbers mean."""
