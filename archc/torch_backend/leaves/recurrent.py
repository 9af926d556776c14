"""Gated recurrent units, token by token, in float32: the state that a token needs is made by the one before."""

# Shape suffixes: B batch, S new tokens, T tokens of an encoder, N channels of the state, K of a key, M of a memory.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import recurrent as ops
from archc.ops.score import ScoreForm
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.masked_attention import keep_source
from archc.torch_backend.leaves.score import meet, weigh
from archc.torch_backend.step import Step, carried
from archc.torch_backend.twins import recurrent as twins


@dataclass(frozen=True, eq=False)
class Attending:
    """What a GRU reads at every token: ``keys`` (B, T, K), ``memory`` (B, T, M), what is ``seen`` of them (B, T), and weights."""

    keys: Tensor
    memory: Tensor
    seen: Tensor | None
    form: ScoreForm
    query: Tensor
    context: Tensor
    weight: Tensor | None


def gru_tokens(
    x_BSG: Tensor,
    state_BN: Tensor,
    gates: Tensor,
    candidate: Tensor,
    *,
    valid_BS: Tensor | None = None,
    attending: Attending | None = None,
    is_backward: bool = False,
) -> tuple[Tensor, Tensor]:
    """(what each token gives, the last state): states (B, S, N), or [the state before, the context] where it attends.

    ``x_BSG`` is what the input brings to update gate, reset gate and candidate. Where ``valid`` is 0 the update gate is,
    so that padding changes no state.
    """
    outs: list[Tensor] = []
    for t in reversed(range(x_BSG.shape[1])) if is_backward else range(x_BSG.shape[1]):
        x_BG, before = x_BSG[:, t], state_BN
        context = None
        if attending is not None:
            context = _context(before, attending)
            x_BG = x_BG + functional.linear(context, attending.context)
        x_z, x_r, x_h = x_BG.chunk(3, -1)
        s_z, s_r = functional.linear(before, gates).chunk(2, -1)
        z = torch.sigmoid(x_z + s_z)
        new = torch.tanh(x_h + functional.linear(torch.sigmoid(x_r + s_r) * before, candidate))
        state_BN = torch.lerp(before, new, z if valid_BS is None else z * valid_BS[:, t : t + 1])
        outs.append(state_BN if context is None else torch.cat((before, context), -1))
    return torch.stack(outs[::-1] if is_backward else outs, 1), state_BN


def _context(state_BN: Tensor, read: Attending) -> Tensor:
    """What a state attends to, (B, M)."""
    query = functional.linear(state_BN, read.query)[:, None, None]
    scores = meet(query, read.keys.unsqueeze(1), form=read.form, weight_NH=read.weight)
    weights = weigh(scores, read.form, None if read.seen is None else read.seen[:, None, None])
    return torch.bmm(weights[:, 0], read.memory).squeeze(1)


class GRU(nn.Module):
    """A GRU in one direction. ``state`` (B, N) is written in place."""

    gates: nn.Linear
    candidate: nn.Linear

    def __init__(self, op: ops.GRU, *, is_twin: bool) -> None:
        super().__init__()
        self.is_backward, self.has_padding, self.tokens = op.is_backward, op.has_padding, _tokens(is_twin)

    def forward(self, x: Tensor, *rest: Tensor | Step | None) -> Tensor:
        """``rest`` are the padding, where the op has it, the step and the tensor that keeps the state."""
        padding, step, state = (*rest, None, None)[:3] if self.has_padding else (None, *rest, None, None)[:3]
        assert not isinstance(padding, Step)
        assert not isinstance(step, Tensor)
        assert not isinstance(state, Step)
        wide = _wide(x)
        before = carried(state, step)
        start = x.new_zeros(x.shape[0], self.candidate.out_features, dtype=wide) if before is None else before.to(wide)
        valid = padding if step is None else step.valid()
        out, final = self.tokens(
            x.to(wide),
            start,
            self.gates.weight.to(wide),
            self.candidate.weight.to(wide),
            valid_BS=None if valid is None else valid.to(wide),
            is_backward=self.is_backward,
        )
        if state is not None:
            state.copy_(final)
        return out.to(x.dtype)

    def extra_repr(self) -> str:
        return "backward" if self.is_backward else "forward"


class AttentionGRU(nn.Module):
    """A GRU that attends to an encoder, whose ``key`` and ``value`` (B, 1, T, …) are kept; ``state`` is written in place."""

    gates: nn.Linear
    candidate: nn.Linear
    context: nn.Linear
    query: nn.Linear
    init: nn.Linear
    weight: nn.Parameter | None

    def __init__(self, op: ops.AttentionGRU, *, is_twin: bool) -> None:
        super().__init__()
        self.form, self.has_padding, self.tokens = op.form, op.has_padding, _tokens(is_twin)
        self.register_parameter("weight", None)

    def forward(self, x: Tensor, keys: Tensor | None, memory: Tensor | None, *rest: Tensor | Step | None) -> Tensor:
        """``rest`` are the padding, where the op has it, the step, and the tensors that keep keys, memory and state."""
        padding, step, key, value, state = (
            (*rest, None, None, None, None)[:5] if self.has_padding else (None, *rest)[:5]
        )
        assert not isinstance(padding, Step)
        assert not isinstance(step, Tensor)
        assert not isinstance(key, Step)
        assert not isinstance(value, Step)
        assert not isinstance(state, Step)
        wide = _wide(x)
        if keys is None or memory is None:
            if key is None or value is None:
                raise ValueError("a decoder without a cache needs encoder_input_ids in every call")
            keys, memory = key[:, 0], value[:, 0]
        else:
            keep_source(key, keys.unsqueeze(1))
            keep_source(value, memory.unsqueeze(1))
        read = Attending(
            keys.to(wide),
            memory.to(wide),
            None if padding is None else padding.bool(),
            self.form,
            self.query.weight.to(wide),
            self.context.weight.to(wide),
            None if self.weight is None else self.weight.to(wide),
        )
        valid = None if step is None else step.valid()
        out, final = self.tokens(
            x.to(wide),
            self._start(read, step, state),
            self.gates.weight.to(wide),
            self.candidate.weight.to(wide),
            valid_BS=None if valid is None else valid.to(wide),
            attending=read,
        )
        if state is not None:
            state.copy_(final)
        return out.to(x.dtype)

    def _start(self, read: Attending, step: Step | None, state: Tensor | None) -> Tensor:
        """The state before the call: what is kept, or what the encoder gives a row that begins."""
        memory = read.memory
        if state is not None and step is not None and step.past > 0 and step.start is None:
            return state.to(memory.dtype)
        at = memory.new_zeros(memory.shape[0], dtype=torch.int64) if read.seen is None else read.seen.long().argmax(1)
        first = memory.gather(1, at.view(-1, 1, 1).expand(-1, 1, memory.shape[-1])).squeeze(1)
        begun = torch.tanh(functional.linear(first.chunk(2, -1)[1], self.init.weight.to(memory.dtype)))
        if state is None or step is None or step.past == 0 or step.start is None:
            return begun
        return torch.where((step.start == 0).unsqueeze(1), begun, state.to(memory.dtype))

    def extra_repr(self) -> str:
        return f"{self.form.meeting}, {self.form.function or 'as it is'}, {self.form.weighing}"


def _tokens(is_twin: bool) -> twins.Tokens:
    return twins.gru_tokens_twin if is_twin else gru_tokens


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def gru(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.GRU)
    return _with_weights(GRU(node.op, is_twin=context.twin is not None), node, context)


def attention_gru(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.AttentionGRU)
    return _with_weights(AttentionGRU(node.op, is_twin=context.twin is not None), node, context)


def _with_weights(module: nn.Module, node: Node, context: Context) -> nn.Module:
    for role, param in node.params.items():
        if role == "weight":
            context.register(module, param, role)
        else:
            module.add_module(role, context.linear(param))
    return module
