"""The kind that a spec names, and the op that it needs."""

from archc.families import Mixer
from archc.ir.op import Op, op
from archc.ir.size import BATCH, SEQ
from archc.ir.values import State
from archc.ops.softmax import for_products, joined_heads, to_heads


class Retention(Mixer):
    """Multi-scale retention, RetNet (arXiv 2307.08621): linear attention with a fixed decay a head."""

    num_heads: int
    head_dim: int

    def define(self, g, x):
        q, k, v, gate = (g.linear(f"{n}_proj", x, self.num_heads * self.head_dim, axis="heads") for n in "qkvg")
        q, k = (self.position.rotate(g, each, head_dim=self.head_dim) for each in (q, k))
        decays = tuple(1 - 2.0 ** (-5 - head) for head in range(self.num_heads))
        (o,) = g.emit(Retain(decays=decays, head_dim=self.head_dim), (q, k, v), name="retention")
        o = g.gated_norm("o_norm", o, gate, head_dim=self.head_dim, eps=self.norm.epsilon(), act="silu")
        return g.linear("o_proj", o, x.width)


@op
class Retain(Op):
    """o_i = sum over j <= i of decay^(i-j) (q_i k_j) v_j / sqrt(head_dim); the state is (batch, heads, K, V)."""

    op_name = "retention"
    decays: tuple[float, ...]
    head_dim: int

    def infer(self, inputs):
        return (inputs[2],)

    def states(self, inputs):
        shape = (BATCH, len(self.decays), self.head_dim, self.head_dim)
        return {"state": State("state", shape, shape, growth="fixed", role="recurrent", dtype="float32")}

    def flops(self, inputs, form, pairs):
        return BATCH * SEQ * inputs[0].width * ((SEQ + 1 if pairs == "needed" else SEQ * 2) * 2 + 4 * self.head_dim)

    def saves(self, tape, inputs, weights):
        q, k, v = (to_heads(tape, tape.wide(each), self.head_dim) for each in inputs)
        (batch, heads, seq, width), wide = v.shape, v.dtype
        # Numbers that no token changes: which tokens are valid, decays between two of them, the state before, its decay.
        valid, decay, past, fading = (
            tape.new(shape, wide) for shape in ((seq,), (heads, seq, seq), (batch, heads, width, width), (heads, seq))
        )
        k = tape.mul(k, valid)
        q, k, v = (for_products(tape, each) for each in (q, k, v))
        scores = tape.mul(tape.matmul(q, k, (batch, heads, seq, seq)), decay)
        held = tape.mul(tape.matmul(q, past, v.shape), fading)
        o = tape.scaled(tape.add(tape.matmul(scores, v, v.shape), held))
        return tape.cast(joined_heads(tape, o), inputs[2].dtype)
