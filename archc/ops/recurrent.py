"""Gated recurrent units: alone, in either direction, and with attention to an encoder at every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, MEMORY, PAST, SEQ, Dim, minimum
from archc.ir.tape import Held, Tape
from archc.ir.values import MODEL_DTYPE, Param, State, TensorType
from archc.ops.score import Meeting, ScoreForm, Weighing, check_form, form_params, saves_scores, saves_weights


@op
class GRU(Op):
    """``s_i = (1 - z) s_{i-1} + z tanh(h_i + U (r s_{i-1}))`` (Cho, arXiv 1406.1078); inputs (gates[, padding]).

    ``gates`` (batch, seq, 3 hidden_size) are what the input brings to z, r and the candidate; ``z = sigmoid(z_i + U_z s)``, r
    alike. ``is_backward``: from a row's last token to its first. It has a state of (batch, hidden_size) where ``keeps``;
    else it sees all tokens at once, and ``padding`` (batch, seq), int64, is 0 for what changes no state. Computed in float32
    whatever the model's dtype.
    """

    op_name = "gru"
    hidden_size: int
    is_backward: bool = False
    keeps: bool = True
    has_padding: bool = False
    state_dtype: str = "float32"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].width != 3 * self.hidden_size:
            raise GraphError(f"gru: {inputs[0]} are no three gates of {self.hidden_size} channels")
        if self.keeps and self.is_backward:
            raise GraphError("gru: the tokens to come are not known where a state is kept")
        return (inputs[0].with_width(self.hidden_size),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return recurrence_params(self.hidden_size)

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        return {"recurrent_state": recurrent_state(self.hidden_size, self.state_dtype)} if self.keeps else {}

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return BATCH * inputs[0].shape[1] * (6 * self.hidden_size**2)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x, wide = tape.wide(inputs[0]), tape.wide(inputs[0]).dtype
        batch, seq, _ = x.shape
        gates, candidate = (tape.cast(weights[name], wide) for name in ("gates", "candidate"))
        state = _next_states(tape, x, tape.new((batch, 1, self.hidden_size), wide), gates, candidate)
        if tape.number(seq) > 1:
            state = _next_states(tape, x, _states(tape, x, self.hidden_size), gates, candidate)
        return tape.cast(tape.copy(state, (batch, seq, self.hidden_size)), inputs[0].dtype)


@op
class AttentionGRU(Op):
    """A GRU that attends to an encoder (Bahdanau, arXiv 1409.0473); inputs (gates, keys, memory[, padding]).

    ``gates`` (batch, seq, 3 hidden_size) are what the input brings; ``keys`` (batch, source, key_dim) are met by
    ``query s_{i-1}`` in a ``ScoreForm``, whose weights sum ``memory`` (batch, source, width) to the context c_i, which brings
    its part to the gates of s_i. The first state is ``tanh(init h)``, h the second half of the memory of a row's first
    token: the state of an encoder's backward direction. Gives [s_{i-1}, c_i], (batch, seq, hidden_size + width).
    """

    op_name = "attention_gru"
    hidden_size: int
    meeting: Meeting
    function: str | None
    weighing: Weighing
    scale: float
    has_padding: bool = True
    cache_dtype: str = MODEL_DTYPE
    state_dtype: str = "float32"

    @property
    def form(self) -> ScoreForm:
        """The form of its scores."""
        return ScoreForm(meeting=self.meeting, function=self.function, weighing=self.weighing, scale=self.scale)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        check_form(self.form)
        gates, _, memory = inputs[:3]
        if gates.width != 3 * self.hidden_size:
            raise GraphError(f"attention_gru: {gates} are no three gates of {self.hidden_size} channels")
        if memory.width % 2:
            raise GraphError(
                f"attention_gru: the first state is made of half of the memory, which is {memory.width} wide"
            )
        return (gates.with_width(self.hidden_size + memory.width),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        hidden, key_dim, width = self.hidden_size, inputs[1].width, inputs[2].width
        return {
            **recurrence_params(hidden),
            "context": Param("context.weight", (3 * hidden, width)),
            "query": Param("query.weight", (key_dim, hidden)),
            "init": Param("init.weight", (hidden, width // 2)),
            **form_params(self.form, 1, key_dim),
        }

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        def kept(name: str, dim: int) -> State:
            shape = (BATCH, 1, MEMORY, dim)
            return State(name, shape, shape, growth="source", role="kv", dtype=self.cache_dtype, token_dim=2)

        return {
            "key": kept("key", inputs[1].width),
            "value": kept("value", inputs[2].width),
            "recurrent_state": recurrent_state(self.hidden_size, self.state_dtype),
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        hidden, key_dim, width = self.hidden_size, inputs[1].width, inputs[2].width
        cell = 2 * (3 * hidden * hidden + 3 * hidden * width + key_dim * hidden)
        first = (1 - minimum(PAST, 1)) * (hidden * width)
        return BATCH * (SEQ * cell + SEQ * MEMORY * (2 * (key_dim + width)) + first)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        keys, memory = (tape.wide(each) for each in inputs[1:3])
        batch, seq, _ = inputs[0].shape
        # The last token's context is given, but not the state that it would make: nothing is kept for that.
        is_one = tape.number(seq) == 1
        x = tape.wide(tape.detach(inputs[0]) if is_one else inputs[0])
        held = {name: tape.cast(weight, x.dtype) for name, weight in weights.items()}
        first = tape.gather(memory, tape.new((batch,), "int64"), (batch, 1, memory.width))
        half = tape.view(first, (batch, 1, memory.width // 2))
        state = tape.of_output(tape.linear(half, held["init"]))
        context = state
        if not is_one:
            state = _states(tape, x, self.hidden_size)
            context = self._context(tape, state, keys, memory, held)
            _next_states(tape, x, state, held["gates"], held["candidate"], (context, held["context"]))
        last = tape.view(state, (batch, 1, self.hidden_size))
        context = self._context(tape, last, keys, memory, held)
        idle = [tape.detach(held[name]) for name in ("gates", "candidate", "context")]
        _next_states(tape, tape.detach(x), tape.detach(last), idle[0], idle[1], (tape.detach(context), idle[2]))
        out = tape.cat((last, context), (batch, seq, self.hidden_size + memory.width))
        return tape.cast(out, inputs[0].dtype)

    def _context(self, tape: Tape, state: Held, keys: Held, memory: Held, weights: Mapping[str, Held]) -> Held:
        """What each state attends to, (batch, states, width of the memory)."""
        batch, states, _ = state.shape
        query = tape.linear(state, weights["query"])
        query = tape.view(query, (batch, 1, states, query.width))
        keys = tape.view(keys, (batch, 1, keys.shape[1], keys.width))
        scores = saves_scores(tape, query, keys, self.form, weights.get("weight"))
        shares = saves_weights(tape, scores, self.form, None)
        return tape.matmul(tape.view(shares, (batch, states, keys.shape[2])), memory, (batch, states, memory.width))


def _states(tape: Tape, x: Held, hidden_size: int) -> Held:
    """The states before all tokens but the first, (batch, seq - 1, hidden_size), each a tensor of its own."""
    batch, seq, _ = x.shape
    return tape.new((batch, seq - 1, hidden_size), x.dtype, needs_grad=True)


def _next_states(
    tape: Tape, x: Held, before: Held, gates: Held, candidate: Held, attended: tuple[Held, Held] | None = None
) -> Held:
    """What comes after states (batch, states, hidden_size), on a tape; ``attended``: contexts, and their weight."""
    if attended is not None:
        x = tape.add(tape.linear(*attended), x)
    brought = tape.linear(before, gates)
    update, reset = (tape.of_output(tape.fresh((brought, x), before.shape)) for _ in range(2))
    new = tape.linear(tape.mul(reset, before), candidate)
    new = tape.of_output(tape.fresh((new, x), before.shape))
    return tape.fresh((before, new, update), keeps=(before, new, update))


def recurrence_params(hidden_size: int) -> dict[str, Param]:
    """What a state brings to its gates and, reset, to its candidate."""
    return {
        "gates": Param("gates.weight", (2 * hidden_size, hidden_size)),
        "candidate": Param("candidate.weight", (hidden_size, hidden_size)),
    }


def recurrent_state(hidden_size: int, dtype: str) -> State:
    """The hidden state, (batch, hidden_size)."""
    shape = (BATCH, hidden_size)
    return State("recurrent_state", shape, shape, growth="fixed", role="recurrent", dtype=dtype)
