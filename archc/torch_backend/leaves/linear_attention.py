"""Linear mixers: the gated delta rule over its state, its decay, and the short convolution."""

# Shape suffixes: B batch, S new tokens, P past columns, N heads, K key width, V value width, C channels.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node, Param
from archc.ops import linear_attention as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.elementwise import ACTIVATIONS
from archc.torch_backend.operators.gated_delta import gated_delta_rule
from archc.torch_backend.operators.short_conv import short_conv
from archc.torch_backend.step import Step
from archc.torch_backend.twins.linear_attention import conv_twin, delta_twin


class LinearAttention(nn.Module):
    """The gated delta rule: chunks for many tokens, the recurrence for one. ``state`` is written in place."""

    def __init__(self, op: ops.LinearAttention, twin: str | None) -> None:
        super().__init__()
        self.num_heads, self.key_dim, self.value_dim, self.scale = op.num_heads, op.key_dim, op.value_dim, op.scale
        self.twin = twin

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor,
        beta: Tensor,
        step: Step | None = None,
        state: Tensor | None = None,
    ) -> Tensor:
        if decay.shape[-1] != beta.shape[-1]:
            decay = decay.unflatten(-1, (-1, self.key_dim))
        if step is not None and (valid := step.valid()) is not None:
            # A padded token must neither decay the state nor write to it.
            decay = decay * valid.view(*valid.shape, *(1,) * (decay.dim() - 2))
            beta = beta * valid.unsqueeze(-1)
        heads = [
            x.unflatten(-1, (-1, width)) for x, width in ((q, self.key_dim), (k, self.key_dim), (v, self.value_dim))
        ]
        rule = gated_delta_rule if self.twin is None else delta_twin(self.twin)
        out, final = rule(heads[0], heads[1], heads[2], decay, beta, state, scale=self.scale)
        if state is not None:
            state.copy_(final)
        return out.flatten(-2)

    def extra_repr(self) -> str:
        return f"heads={self.num_heads}, key_dim={self.key_dim}, value_dim={self.value_dim}"


class LogDecay(nn.Module):
    """``-exp(A_log) softplus(x + dt_bias)``, or bounded below by ``floor``; float32."""

    A_log: nn.Parameter
    dt_bias: nn.Parameter

    def __init__(self, op: ops.LogDecay) -> None:
        super().__init__()
        self.floor = op.floor

    def forward(self, x: Tensor) -> Tensor:
        # Heads from the width, so that a shard of the heads needs nothing special.
        rate = self.A_log.float().exp().repeat_interleave(self.dt_bias.shape[0] // self.A_log.shape[0])
        shifted = x.float() + self.dt_bias.float()
        if self.floor is not None:
            return torch.sigmoid(rate * shifted) * self.floor
        return functional.softplus(shifted) * -rate

    def extra_repr(self) -> str:
        return f"heads={self.A_log.shape[0]}, width={self.dt_bias.shape[0]}"


class Stream(nn.Module):
    """Weights of one stream, (channels, 1, kernel)."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, kernel={self.weight.shape[-1]}"


class CausalConv(nn.Module):
    """Depthwise convolutions of several streams; ``state`` holds the last kernel - 1 columns of all of them."""

    def __init__(self, op: ops.CausalConv, twin: str | None) -> None:
        super().__init__()
        self.streams, self.kernel, self.function, self.twin = op.streams, op.kernel, op.function, twin

    def forward(self, *args: Tensor | Step | None) -> tuple[Tensor, ...] | Tensor:
        count = len(self.streams)
        inputs = [x for x in args[:count] if isinstance(x, Tensor)]
        step, state = (args[count], args[count + 1]) if len(args) > count else (None, None)
        assert step is None or isinstance(step, Step)
        assert state is None or isinstance(state, Tensor)
        outputs: list[Tensor] = []
        begin = 0
        for name, x in zip(self.streams, inputs, strict=True):
            width = x.shape[-1]
            columns = None if state is None else state[..., begin : begin + width]
            outputs.append(self._stream(self.get_submodule(name), x, step, columns))
            begin += width
        return tuple(outputs) if count > 1 else outputs[0]

    def _stream(self, stream: nn.Module, x: Tensor, step: Step | None, columns_BPC: Tensor | None) -> Tensor:
        assert isinstance(stream, Stream)
        kept = self.kernel - 1
        past = x.new_zeros(x.shape[0], kept, x.shape[-1]) if columns_BPC is None else columns_BPC.to(x.dtype)
        weight = stream.weight[:, 0]
        silu = self.function == "silu" and stream.bias is None
        if self.twin is not None:
            y = conv_twin(x, past, weight)
        elif x.shape[1] == 1 and not x.requires_grad:
            y = (torch.cat((past, x), 1) * weight.t()).sum(1, keepdim=True)
        else:
            y = short_conv(x, past.clone() if columns_BPC is not None else past, weight, silu)
            if columns_BPC is not None:
                self._keep(x, past, step, columns_BPC)
            return y if silu else self._finish(y, stream.bias)
        if columns_BPC is not None:
            self._keep(x, past, step, columns_BPC)
        return self._finish(y, stream.bias)

    def _finish(self, y: Tensor, bias: Tensor | None) -> Tensor:
        y = y if bias is None else y + bias
        return y if self.function is None else ACTIVATIONS[self.function](y)

    def _keep(self, x: Tensor, past: Tensor, step: Step | None, columns_BPC: Tensor) -> None:
        """The last columns before the next token, at each row's true length."""
        kept = self.kernel - 1
        joined = torch.cat((past, x[:, -kept:] if step is None or step.new is None else x), 1)
        if step is None or step.new is None:
            columns_BPC.copy_(joined[:, -kept:])
        else:
            index = step.new.unsqueeze(1) + torch.arange(kept, device=x.device)
            columns_BPC.copy_(joined.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1])))

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, act={self.function}"


def linear_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.LinearAttention)
    return LinearAttention(node.op, context.twin)


def log_decay(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.LogDecay)
    module = LogDecay(node.op)
    for role in ("A_log", "dt_bias"):
        context.register(module, node.params[role], role)
    return module


def causal_conv(node: Node, context: Context) -> nn.Module:
    op = node.op
    assert isinstance(op, ops.CausalConv)
    module = CausalConv(op, context.twin)
    for name in op.streams:
        stream = Stream()
        context.register(stream, node.params[f"{name}.weight"], "weight")
        bias: Param | None = node.params.get(f"{name}.bias")
        if bias is None:
            stream.register_parameter("bias", None)
        else:
            context.register(stream, bias, "bias")
        module.add_module(name, stream)
    return module
