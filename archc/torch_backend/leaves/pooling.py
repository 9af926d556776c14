"""One vector for a whole text."""

# Shape suffixes: B batch, S tokens, D width.

from __future__ import annotations

from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import pooling as ops
from archc.torch_backend.context import Context
from archc.torch_backend.step import Step


class Pool(nn.Module):
    """x (B, S, D) -> (B, D): the first token, the last or the mean, of those that are no padding."""

    def __init__(self, op: ops.Pool) -> None:
        super().__init__()
        self.token, self.has_padding = op.token, op.has_padding

    def forward(self, x: Tensor, *rest: Tensor | Step | None) -> Tensor:
        """``rest`` are the padding (batch, tokens), where the op has it, and the step of a call over a cache."""
        padding, step = (rest[0], None) if self.has_padding else (None, rest[0] if rest else None)
        assert not isinstance(padding, Step)
        valid_BS = padding
        # One column is what `last_only` leaves, and then it is the last.
        if isinstance(step, Step) and x.shape[1] > 1 and (valid := step.valid()) is not None:
            valid_BS = valid
        if valid_BS is None:
            return x.mean(1) if self.token == "mean" else x[:, 0 if self.token == "first" else -1]
        weight_BS = valid_BS.to(x.dtype)
        if self.token == "mean":
            return (x * weight_BS.unsqueeze(-1)).sum(1) / weight_BS.sum(1, keepdim=True).clamp(min=1)
        if self.token == "first":
            at_B = weight_BS.argmax(1)
        else:
            at_B = x.shape[1] - 1 - weight_BS.flip(1).argmax(1)
        return x.gather(1, at_B.view(-1, 1, 1).expand(-1, 1, x.shape[-1])).squeeze(1)

    def extra_repr(self) -> str:
        return self.token


def pool(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.Pool)
    return Pool(node.op)
