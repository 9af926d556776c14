"""How the map of a leaf is read off the leaf itself: values that are one for one token, or a kernel that is listened to.

A map is the matrix A of ``o_i = sum_j A_ij v_j``. Whatever is linear in its values gives it away when the values are the rows
of an identity: softmax under any mask, kernels, and recurrences (a state that decays, a delta rule, a state space) alike.
"""

# Shape suffixes: B batch (always 1), S new tokens, C columns, N heads, K key-value heads, G = N / K, V value width.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archc.ir.op import Op

Forward = Callable[..., Any]
Span = tuple[int, int]
"""First token and the one after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One map: ``weights`` (N, S, C), and that it is the leaf's: ``product`` with the values, beside ``output``, both (N, S, V).

    ``branch`` tells maps of one leaf apart. ``spans`` are the tokens of each column where a column is no single token.
    ``reads_source``: columns are an encoder's tokens. ``are_channels``: maps are of channels, not of heads.
    """

    weights: Tensor
    product: Tensor
    output: Tensor
    branch: str = ""
    spans: tuple[Span, ...] | None = None
    reads_source: bool = False
    are_channels: bool = False

    def difference(self) -> float:
        """The largest difference between map times values and what the leaf gives, over the largest output."""
        largest = self.output.abs().max().clamp(min=1e-30)
        return float((self.product - self.output).abs().max() / largest)


Read = Callable[[nn.Module, Any, Sequence[Any], Any], list[Reading]]
"""(leaf, its op, what it was called with, what it returned) -> maps."""


def read(module: nn.Module, op: Op, args: Sequence[Any], output: Any) -> list[Reading]:
    """The maps of a leaf that ``has_map``; none where it made nothing of the text, as a block that is never complete."""
    return READERS[op.op_name](module, op, args, output)


def has_map(op: Op) -> bool:
    """Whether an op moves values from token to token in a way that a matrix can say."""
    return op.op_name in READERS


def pushed(forward: Forward, args: Sequence[Any], at: Sequence[int], dim: int) -> Tensor:
    """Weights (N, S, C) of a leaf whose arguments ``at`` hold values (1, C, K x ``dim``); a call gives ``dim`` columns."""
    value = args[at[0]]
    columns, heads = value.shape[1], value.shape[-1] // dim
    pieces: list[Tensor] = []
    for first in range(0, columns, dim):
        count = torch.arange(min(dim, columns - first), device=value.device)
        unit = value.new_zeros(1, columns, heads, dim)
        unit[0, first + count, :, count] = 1.0
        given = list(args)
        for index in at:
            given[index] = unit.flatten(-2)
        pieces.append(forward(*given).unflatten(-1, (-1, dim))[0, :, :, : len(count)])
    return torch.cat(pieces, -1).transpose(0, 1)


def by_head(x_BSX: Tensor, dim: int, heads: int | None = None) -> Tensor:
    """(1, S, K x dim) -> (K, S, dim), repeated for ``heads`` query heads."""
    x = x_BSX.unflatten(-1, (-1, dim))[0].transpose(0, 1)
    return x if heads is None else x.repeat_interleave(heads // x.shape[0], 0)


def values_at(
    at: int,
    *,
    output: int | None = None,
    branch: str = "",
    reads_source: bool = False,
    dim_name: str = "value_dim",
    is_by_channel: bool = False,
) -> Read:
    """A reader of leaves whose argument ``at`` holds the values, as wide as the op's field ``dim_name`` a head."""

    def reader(module: nn.Module, op: Any, args: Sequence[Any], given: Any) -> list[Reading]:
        dim = 1 if is_by_channel else getattr(op, dim_name)

        def forward(*inputs: Any) -> Tensor:
            return _part(module.forward(*inputs), output)

        weights = pushed(forward, args, (at,), dim)
        product = weights @ by_head(args[at], dim, weights.shape[0])
        return [
            Reading(
                weights=weights,
                product=product,
                output=by_head(_part(given, output), dim),
                branch=branch,
                reads_source=reads_source,
                are_channels=is_by_channel,
            )
        ]

    return reader


def _part(output: Any, index: int | None) -> Tensor:
    """The tensor of a tuple that the values went into; the first where a leaf hands further ones on."""
    return output if isinstance(output, Tensor) else output[index or 0]


def kernel_calls(module: nn.Module, args: Sequence[Any], name: str = "kernel") -> list[tuple[Tensor, Tensor, Tensor]]:
    """Weights (N, S, C), product and output (N, S, V) of each call that a leaf makes of its kernel (q, k, v, …).

    The kernel is called once more with an identity for values, so that masks, sinks and choices are the leaf's own.
    """
    kernel, found = getattr(module, name), list[tuple[Tensor, Tensor, Tensor]]()

    def listening(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **keywords: Any) -> Any:
        unit = torch.eye(k.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
        given = kernel(q, k, v, *rest, **keywords)
        weights, out = _part(kernel(q, k, unit, *rest, **keywords), 0)[0], _part(given, 0)[0]
        found.append((weights, weights @ v[0].repeat_interleave(weights.shape[0] // v.shape[1], 0), out))
        return given

    setattr(module, name, listening)
    try:
        module.forward(*args)
    finally:
        setattr(module, name, kernel)
    return found


def _of_kernel(module: nn.Module, op: Any, args: Sequence[Any], given: Any) -> list[Reading]:
    """A leaf whose values are inside it, or rows of an earlier layer: what its kernel does in its only call."""
    return [Reading(weights=w, product=p, output=o) for w, p, o in kernel_calls(module, args)]


def _latent(module: nn.Module, op: Any, args: Sequence[Any], given: Any) -> list[Reading]:
    """Latent attention in its expanded form; the leaf's output is the judge, not the kernel's."""
    [(weights, product, _)] = kernel_calls(module, args)
    return [Reading(weights=weights, product=product, output=by_head(given, op.value_dim))]


def _compressed(module: nn.Module, op: Any, args: Sequence[Any], given: Any) -> list[Reading]:
    """Tokens of the window, then entries, each of which stands for ``ratio`` tokens."""
    [(weights, product, _)] = kernel_calls(module, args)
    tokens = args[1].shape[1]
    spans = [(at, at + 1) for at in range(tokens)]
    spans += [(at * op.ratio, (at + 1) * op.ratio) for at in range(weights.shape[-1] - tokens)]
    return [
        Reading(
            weights=weights,
            product=product,
            output=by_head(given, op.head_dim),
            spans=tuple(spans) if len(spans) > tokens else None,
        )
    ]


def _native_sparse(module: nn.Module, op: Any, args: Sequence[Any], given: Any) -> list[Reading]:
    """The selected branch by token, the compressed one by block where there is a whole block; the window is an op of its own."""
    found = values_at(4, output=1, branch="selected")(module, op, args, given)
    parts = kernel_calls(module, args, "shares")
    weights, product = (torch.cat([part[i] for part in parts], 1) for i in (0, 1))
    if weights.shape[-1]:
        block, stride = op.compress_block_size, op.compress_stride
        found.append(
            Reading(
                weights=weights,
                product=product,
                output=by_head(given[0], op.value_dim),
                branch="compressed",
                spans=tuple((at * stride, at * stride + block) for at in range(weights.shape[-1])),
            )
        )
    return found


def _local_global(module: nn.Module, op: Any, args: Sequence[Any], given: Any) -> list[Reading]:
    """Global tokens may have values of their own: both are pushed, and each row is judged by those it reads."""
    dim, at = op.head_dim, (2,)
    if op.num_global and op.has_global_projections:
        at = (2, 3 + op.has_padding + 2)
    weights = pushed(module.forward, args, at, dim)
    product = weights @ by_head(args[2], dim, weights.shape[0])
    if len(at) > 1:
        others = weights @ by_head(args[at[1]], dim, weights.shape[0])
        product[:, : op.num_global] = others[:, : op.num_global]
    return [Reading(weights=weights, product=product, output=by_head(given, dim))]


def _gru(module: Any, op: Any, args: Sequence[Any], given: Tensor) -> list[Reading]:
    """Given its gates a state is a sum of candidates, ``h_i = sum_j z_j prod_(j<k<=i) (1 - z_k) h~_j``, for each channel."""
    x_SG, state_SN = args[0][0].float(), given[0].float()
    if module.is_backward:
        x_SG, state_SN = x_SG.flip(0), state_SN.flip(0)
    before = torch.cat((torch.zeros_like(state_SN[:1]), state_SN[:-1]))
    x_z, x_r, x_h = x_SG.chunk(3, -1)
    s_z, s_r = module.gates(before).chunk(2, -1)
    z = torch.sigmoid(x_z + s_z)
    candidate = torch.tanh(x_h + module.candidate(torch.sigmoid(x_r + s_r) * before))
    tokens, channels = z.shape
    weights = z.new_zeros(channels, tokens, tokens)
    for i in range(tokens):
        if i:
            weights[:, i] = weights[:, i - 1] * (1 - z[i]).unsqueeze(-1)
        weights[:, i, i] = z[i]
    product, output = weights @ candidate.t().unsqueeze(-1), state_SN.t().unsqueeze(-1)
    if module.is_backward:
        weights, product, output = weights.flip(1, 2), product.flip(1), output.flip(1)
    branch = "backward" if module.is_backward else ""
    return [Reading(weights=weights, product=product, output=output, branch=branch, are_channels=True)]


def _attention_gru(module: Any, op: Any, args: Sequence[Any], given: Tensor) -> list[Reading]:
    """What each state attends to of the encoder; the state before a token and the context are what the leaf gives."""
    from archc.torch_backend.leaves.score import meet, weigh

    keys, memory = args[1].float(), args[2].float()
    padding = args[3] if op.has_padding else None
    before, context = given[0].float().split((given.shape[-1] - memory.shape[-1], memory.shape[-1]), -1)
    scores = meet(module.query(before)[None, None], keys.unsqueeze(1), form=op.form, weight_NH=module.weight)
    weights = weigh(scores, op.form, None if padding is None else padding.bool()[:, None, None])[0]
    return [Reading(weights=weights, product=weights @ memory, output=context.unsqueeze(0), reads_source=True)]


READERS: dict[str, Read] = {
    "attention": values_at(2),
    "score_attention": values_at(2),
    "shared_attention": _of_kernel,
    "bidirectional_attention": values_at(2),
    "bidirectional_score_attention": values_at(2),
    "cross_attention": values_at(2, reads_source=True),
    "cross_score_attention": values_at(2, reads_source=True),
    "disentangled_attention": values_at(2),
    "local_global_attention": _local_global,
    "block_sparse_attention": values_at(2, dim_name="head_dim"),
    "latent_attention": _latent,
    "sparse_latent_attention": _latent,
    "native_sparse_attention": _native_sparse,
    "mixture_of_block_attention": values_at(2, dim_name="head_dim"),
    "compressed_attention": _compressed,
    "linformer_attention": values_at(2, dim_name="head_dim"),
    "feature_attention": values_at(2),
    "bidirectional_feature_attention": values_at(2),
    "linear_attention": values_at(2),
    "state_space": values_at(0, dim_name="head_dim"),
    "selective_scan": values_at(0, is_by_channel=True),
    "gru": _gru,
    "attention_gru": _attention_gru,
}
"""Name of an op -> how its leaf's map is read."""
