"""Gated recurrent units that attend to an encoder."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import PositiveInt

from archc.errors import GraphError
from archc.families import Mixer, Score
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops import recurrent as ops
from archc.spec.slots import Slot


class AttentionGRU(Mixer):
    """A GRU that attends to the encoder at each token (Bahdanau, arXiv 1409.0473, appendix A).

    It gives [s_{i-1}, x_i, c_i]: the state before, its own input and the context, which is what the paper's output layer reads.
    It begins with tanh(W h), h the second half of what the encoder gives for the first token, its backward state.
    """

    reads_encoder: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = False

    hidden_size: PositiveInt
    """Channels of the state."""
    score: Annotated[Any, Slot("score")]
    """How a state and the encoder's tokens meet."""
    bias: bool = False
    """Biases on the gates."""

    def define(self, g: Builder, x: Value) -> Value:
        if g.memory is None:
            raise GraphError(f"{g.path}: attention_gru reads an encoder, so it belongs in a decoder")
        score: Score = self.score
        width = score.width(self.hidden_size)
        form = score.form(width)
        keys = g.linear("k_proj", g.memory, width)
        gates = g.linear("input_proj", x, 3 * self.hidden_size, bias=self.bias)
        op = ops.AttentionGRU(
            hidden_size=self.hidden_size,
            meeting=form.meeting,
            function=form.function,
            weighing=form.weighing,
            scale=form.scale,
            has_padding=g.memory_padding is not None,
            cache_dtype=g.cache_dtype,
            state_dtype=g.state_dtype,
        )
        further = () if g.memory_padding is None else (g.memory_padding,)
        (o,) = g.emit(op, (gates, keys, g.memory, *further), name="gru")
        state, context = g.split(o, (self.hidden_size, g.memory.width))
        return g.concat(state, x, context)
