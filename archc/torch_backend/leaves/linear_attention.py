"""Linear mixers: the gated delta rule and the plain gated one over their state, decays, and the short convolution."""

# Shape suffixes: B batch, S new tokens, P past columns, N heads, K key width, V value width, C channels.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node, Param
from archc.ops import linear_attention as ops
from archc.torch_backend.context import Context, Function
from archc.torch_backend.leaves.elementwise import ACTIVATIONS
from archc.torch_backend.leaves.numbers import numbers
from archc.torch_backend.operators.gated_attention import gated_attention_rule
from archc.torch_backend.operators.gated_delta import gated_delta_rule
from archc.torch_backend.operators.short_conv import short_conv
from archc.torch_backend.step import Step, carried
from archc.torch_backend.twins.gated_attention import gated_attention_twin
from archc.torch_backend.twins.linear_attention import conv_twin, delta_twin


class LinearAttention(nn.Module):
    """The gated delta rule: chunks for many tokens, the recurrence for one. ``state`` is written in place."""

    def __init__(self, op: ops.LinearAttention, twin: str | None) -> None:
        super().__init__()
        self.num_heads, self.key_dim, self.value_dim, self.scale = op.num_heads, op.key_dim, op.value_dim, op.scale
        self.group = op.num_heads // op.num_key_heads
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
        if self.group > 1:
            heads[:2] = (x.repeat_interleave(self.group, 2) for x in heads[:2])
        rule = gated_delta_rule if self.twin is None else delta_twin(self.twin)
        out, final = rule(heads[0], heads[1], heads[2], decay, beta, carried(state, step), scale=self.scale)
        if state is not None:
            state.copy_(final)
        return out.flatten(-2)

    def extra_repr(self) -> str:
        grouped = f", key_heads={self.num_heads // self.group}" if self.group > 1 else ""
        return f"heads={self.num_heads}{grouped}, key_dim={self.key_dim}, value_dim={self.value_dim}"


class GatedAttention(nn.Module):
    """Plain writes, decays of heads or channels: chunks for many tokens, the recurrence for one. Writes ``state`` in place."""

    def __init__(self, op: ops.LinearAttention, twin: str | None) -> None:
        super().__init__()
        self.num_heads, self.num_key_heads = op.num_heads, op.num_key_heads
        self.key_dim, self.value_dim, self.scale, self.twin = op.key_dim, op.value_dim, op.scale, twin

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, step: Step | None = None, state: Tensor | None = None
    ) -> Tensor:
        if step is not None and (valid := step.valid()) is not None:
            # A padded token must neither decay the state nor write to it.
            decay = decay * valid.unsqueeze(-1)
            k = k * valid.unsqueeze(-1)
        q, k, v = (
            x.unflatten(-1, (-1, width)) for x, width in ((q, self.key_dim), (k, self.key_dim), (v, self.value_dim))
        )
        if decay.shape[-1] != v.shape[2]:
            decay, group = decay.unflatten(-1, (-1, self.key_dim)), v.shape[2] // q.shape[2]
            if group > 1:
                q, k = (x.repeat_interleave(group, 2) for x in (q, k))
        rule = gated_attention_rule if self.twin is None else gated_attention_twin(self.twin)
        out, final = rule(q, k, v, decay, carried(state, step), scale=self.scale)
        if state is not None:
            state.copy_(final)
        return out.flatten(-2)

    def extra_repr(self) -> str:
        grouped = f", key_heads={self.num_key_heads}" if self.num_key_heads < self.num_heads else ""
        return f"heads={self.num_heads}{grouped}, key_dim={self.key_dim}, value_dim={self.value_dim}, gated"


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
        streams = [self._modules[name] for name in self.streams]
        if inputs[0].shape[1] == 1 and self.twin is None and not torch.is_grad_enabled():
            outputs = self._one_token(streams, inputs, step, state)
        else:
            outputs = []
            begin = 0
            for stream, x in zip(streams, inputs, strict=True):
                columns = None if state is None else state[..., begin : begin + x.shape[-1]]
                outputs.append(self._many_tokens(stream, x, step, columns))
                begin += x.shape[-1]
        return tuple(outputs) if count > 1 else outputs[0]

    def _one_token(
        self, streams: list[Any], inputs: list[Tensor], step: Step | None, state_BPC: Tensor | None
    ) -> list[Tensor]:
        """All streams together: a decode step is made of so little work that the number of calls is what counts."""
        x_B1C = torch.cat(inputs, -1)
        columns_BKC = torch.cat((self._past(x_B1C, step, state_BPC), x_B1C), 1)
        weight_CK = torch.cat([stream.weight[:, 0] for stream in streams])
        y = (columns_BKC * weight_CK.t()).sum(1, keepdim=True)
        if streams[0].bias is not None:
            y = y + torch.cat([stream.bias for stream in streams])
        if state_BPC is not None:
            self._keep(columns_BKC, step, state_BPC)
        return list(
            (y if self.function is None else ACTIVATIONS[self.function](y)).split([x.shape[-1] for x in inputs], -1)
        )

    def _many_tokens(self, stream: Any, x: Tensor, step: Step | None, columns_BPC: Tensor | None) -> Tensor:
        past = self._past(x, step, columns_BPC)
        weight, bias = stream.weight[:, 0], stream.bias
        fused = self.twin is None and bias is None and self.function == "silu"
        y = conv_twin(x, past, weight) if self.twin is not None else short_conv(x, past, weight, fused)
        if columns_BPC is not None:
            recent = x if step is not None and step.new is not None else x[:, 1 - self.kernel :]
            self._keep(torch.cat((past, recent), 1), step, columns_BPC)
        y = y if bias is None else y + bias
        return y if fused or self.function is None else ACTIVATIONS[self.function](y)

    def _past(self, x: Tensor, step: Step | None, columns_BPC: Tensor | None) -> Tensor:
        """The kernel - 1 inputs before this call, a copy: the state is overwritten while backward may still need them."""
        held = carried(columns_BPC, step)
        if held is None:
            # One zero seen as all of them: backward keeps it.
            return x.new_zeros(()).expand(x.shape[0], self.kernel - 1, x.shape[-1])
        return held.to(x.dtype, copy=torch.is_grad_enabled())

    def _keep(self, columns_BTC: Tensor, step: Step | None, state_BPC: Tensor) -> None:
        """The last columns before the next token, at each row's true length."""
        kept = self.kernel - 1
        if step is None or step.new is None:
            state_BPC.copy_(columns_BTC[:, -kept:])
        else:
            index = step.new.unsqueeze(1) + torch.arange(kept, device=columns_BTC.device)
            state_BPC.copy_(columns_BTC.gather(1, index.unsqueeze(-1).expand(-1, -1, columns_BTC.shape[-1])))

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, act={self.function}"


def linear_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.LinearAttention)
    return (GatedAttention if node.op.rule == "gated" else LinearAttention)(node.op, context.twin)


def repeated(x: Tensor, *, values: tuple[float, ...]) -> Tensor:
    """The numbers for every token of x, (B, S, N) in float32."""
    return numbers(values, x).expand(*x.shape[:-1], -1)


def fixed_decay(node: Node, context: Context) -> Function:
    assert isinstance(node.op, ops.FixedDecay)
    return Function(repeated, {"values": node.op.values})


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
