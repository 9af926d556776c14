"""Softmax attention over given keys: torch's fused kernel where it can say what is meant, spelled-out matmuls elsewhere."""

# Shape suffixes: B batch, S new tokens, T keys, N query heads, K key-value heads, G = N / K, H key width, V value width.

from __future__ import annotations

from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import functional

from archc.torch_backend.leaves.numbers import numbers


def visible(
    query_BS: Tensor, key_BT: Tensor, *, window: int | None = None, chunk: int | None = None, sink_tokens: int = 0
) -> Tensor:
    """Which key each query sees, (B or 1, 1, S, T) bool; keys at negative positions are nobody's.

    The first ``sink_tokens`` tokens are seen from beyond the window, too.
    """
    query, key = query_BS.unsqueeze(-1), key_BT.unsqueeze(-2)
    seen = (key <= query) & (key >= 0)
    if window is not None:
        near = key > query - window
        seen = seen & (near | (key < sink_tokens) if sink_tokens else near)
    if chunk is not None:
        seen = seen & (key >= query - query % chunk)
    return seen.unsqueeze(1)


def added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of bools as numbers that are added to scores: 0 where a key is seen, minus infinity elsewhere.

    torch's fused kernels would make it themselves, once a call, and keep it for backward: made here, it can be shared.
    """
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))


def falling(
    slopes: tuple[float, ...], query_BS: Tensor, key_BT: Tensor, seen: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """What is added to scores, (B or 1, N, S, T): minus slope times distance where a key is seen, minus infinity elsewhere.

    From the distance and not from the key's position, which the softmax would not tell apart, so that the near keys, which
    matter, keep their digits in half precision.
    """
    distance_BST = -(key_BT.unsqueeze(-2) - query_BS.unsqueeze(-1)).abs().float()
    mask_BNST = distance_BST.unsqueeze(1) * numbers(slopes, query_BS).view(-1, 1, 1)
    if seen is not None:
        mask_BNST = mask_BNST.masked_fill(~seen, float("-inf"))
    return mask_BNST.to(dtype)


_alive: WeakValueDictionary[Hashable, Tensor] = WeakValueDictionary()


def while_alive(key: Hashable, make: Callable[[], Tensor], *, of: Tensor | None = None) -> Tensor:
    """The same tensor for equal keys as long as somebody holds it: the layers of a training step keep one mask, not one each.

    ``of`` is a tensor whose numbers it is made of.
    """
    if torch.compiler.is_compiling() or (of is not None and of.is_inference()):
        return make()
    key = (key, torch.is_inference_mode_enabled(), None if of is None else (id(of), of._version))
    found = _alive.get(key)
    if found is None:
        found = _alive[key] = make()
        # Held by what is made of it, so that no other tensor gets its id meanwhile.
        setattr(found, "made_of", of)  # noqa: B010
    return found


def attend(
    q_BNSH: Tensor,
    k_BKTH: Tensor,
    v_BKTV: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    sinks_N: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """(B, N, S, V). Query head n reads key-value head n // G. ``causal`` is for as many keys as queries.

    A mask of bools says what is seen, one of numbers, in the dtype of q, is added to the scores.
    """
    if sinks_N is not None or soft_cap is not None:
        return attend_spelled(
            q_BNSH, k_BKTH, v_BKTV, scale=scale, mask=mask, causal=causal, sinks_N=sinks_N, soft_cap=soft_cap
        )
    grouped = q_BNSH.shape[1] != k_BKTH.shape[1]
    width, value_width = q_BNSH.shape[-1], v_BKTV.shape[-1]
    # The fused kernels want one width; zeros cost less than the (S, T) scores that the unfused path would keep.
    if value_width < width:
        padded = functional.pad(v_BKTV, (0, width - value_width))
        return functional.scaled_dot_product_attention(
            q_BNSH, k_BKTH, padded, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
        )[..., :value_width]
    if value_width > width:
        # Padded as tokens lie in memory: the kernel writes its output as queries are laid out.
        q_BNSH, k_BKTH = (
            functional.pad(x.transpose(1, 2), (0, value_width - width)).transpose(1, 2) for x in (q_BNSH, k_BKTH)
        )
    return functional.scaled_dot_product_attention(
        q_BNSH, k_BKTH, v_BKTV, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def attend_spelled(
    q_BNSH: Tensor,
    k_BKTH: Tensor,
    v_BKTV: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    sinks_N: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """The same in plain matmuls, with a learned sink logit a head and soft-capped scores; softmax in float32.

    A mask of numbers is added after the cap.
    """
    batch, heads, seq, _ = q_BNSH.shape
    kv_heads = k_BKTH.shape[1]
    # Queries of one group stand under each other, so that no key or value is copied for them.
    q_BKgH = q_BNSH.reshape(batch, kv_heads, heads // kv_heads * seq, -1)
    scores = torch.matmul(q_BKgH, k_BKTH.transpose(-1, -2)).view(batch, heads, seq, -1).float() * scale
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    if causal:
        mask = torch.ones(seq, scores.shape[-1], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        # A sum keeps no mask for backward.
        scores = scores + (added(mask, scores.dtype) if mask.dtype == torch.bool else mask)
    if sinks_N is None:
        weights = scores.softmax(-1)
    else:
        sink = sinks_N.float().view(1, -1, 1, 1).expand(batch, heads, seq, 1)
        weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    weights_BKgT = weights.to(v_BKTV.dtype).reshape(batch, kv_heads, heads // kv_heads * seq, -1)
    return torch.matmul(weights_BKgT, v_BKTV).view(batch, heads, seq, -1)
