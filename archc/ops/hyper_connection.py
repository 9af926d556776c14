"""Manifold-constrained hyper-connections: several residual streams that each token mixes in its own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import Dim, product
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, TensorType


def _weights(numbers: int, width: int, kinds: int) -> dict[str, Param]:
    """A linear map of all streams, a bias, and a factor a kind of number; float32, because mixing repeats in every layer."""
    return {
        "fn": Param("fn", (numbers, width), dtype="float32"),
        "base": Param("base", (numbers,), init="zeros", dtype="float32"),
        "scale": Param("scale", (kinds,), init="ones", dtype="float32"),
    }


def _checked(name: str, streams: TensorType, count: int) -> int:
    """Width of one stream."""
    if streams.width % count:
        raise GraphError(f"{name}: {streams} is not {count} streams side by side")
    return streams.width // count


def _mapped(tape: Tape, streams: Held, weight: Held) -> Held:
    """The map of the normed streams on a tape: the norm is a factor a token."""
    factor = tape.of_output(tape.sum(tape.of_input(streams), (*streams.shape[:-1], 1)))
    return tape.mul(tape.linear(streams, weight), factor)


def _read(tape: Tape, streams: Held, numbers: Held, shape: tuple[Dim, ...]) -> Held:
    """The sum of the streams by their numbers, on a tape."""
    return tape.matmul(tape.scaled(tape.of_output(numbers)), streams, shape)


@op
class HyperConnection(Op):
    """What a branch reads of n residual streams, and how they mix behind it (mHC, arXiv 2512.24880; DeepSeek-V4).

    Input: the streams side by side (batch, seq, n x D). Outputs: x (batch, seq, D); post (batch, seq, n) and comb
    (batch, seq, n x n) in float32. With h the streams over the root of their mean square (``norm_eps`` under it), and a
    linear map without bias of h in three parts, each times its ``scale`` and plus its ``base``:

    * pre = sigmoid(·) + eps, and x = sum_i pre_i stream_i
    * post = 2 sigmoid(·)
    * comb = softmax over rows + eps, then columns normalised, then rows and columns ``sinkhorn_iters - 1`` times, each as
      number / (sum + eps), so that it is nearly doubly stochastic (Sinkhorn)
    """

    op_name = "hyper_connection"
    num_streams: int
    sinkhorn_iters: int
    eps: float
    norm_eps: float

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        streams, count = inputs[0], self.num_streams
        width = _checked(self.op_name, streams, count)
        leading = streams.shape[:-1]
        return (
            streams.with_width(width),
            TensorType((*leading, count), "float32"),
            TensorType((*leading, count * count), "float32"),
        )

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return _weights((2 + self.num_streams) * self.num_streams, inputs[0].width, 3)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        """The map, and the sum over streams."""
        return product(inputs[0].shape) * (2 * (2 + self.num_streams) * self.num_streams + 2)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> tuple[Held, Held, Held]:
        streams, count = tape.wide(inputs[0]), self.num_streams
        mapped, leading = _mapped(tape, streams, weights["fn"]), streams.shape[:-1]

        def part(width: int) -> Held:
            piece = tape.view(mapped, (*leading, width))
            return tape.add(tape.mul(piece, weights["scale"]), weights["base"])

        pre, post, comb = (part(width) for width in (count, count, count * count))
        comb = tape.scaled(tape.of_output(comb))
        for _ in range(2 * self.sinkhorn_iters - 1):
            comb = tape.div(comb, tape.scaled(tape.sum(comb, (*leading, count))))
        read = _read(tape, streams, pre, (*leading, streams.width // count))
        return tape.cast(read, inputs[0].dtype), tape.scaled(tape.of_output(post)), comb


@op
class HyperMix(Op):
    """``stream_k = post_k y + sum_j comb_jk stream_j``; inputs (streams, y, post, comb)."""

    op_name = "hyper_mix"
    num_streams: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        streams, y, post, comb = inputs
        count = self.num_streams
        if (y.width, post.width, comb.width) != (_checked(self.op_name, streams, count), count, count * count):
            raise GraphError(f"{self.op_name}: {y}, {post} and {comb} don't fit {count} streams {streams}")
        return (streams,)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        """The streams' mix; what a branch adds is elementwise."""
        return product(inputs[0].shape) * (2 * self.num_streams)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        streams, y, post, comb = inputs
        mixed = tape.matmul(tape.cast(comb, streams.dtype), streams, streams.shape)
        post = tape.cast(post, streams.dtype)
        return tape.add(mixed, tape.fresh((y, post), streams.shape, keeps=(y, post)))


@op
class HyperHead(Op):
    """Streams (batch, seq, n x D) as one value (batch, seq, D): ``sum_i pre_i stream_i`` with pre as ``HyperConnection``'s."""

    op_name = "hyper_head"
    num_streams: int
    eps: float
    norm_eps: float

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0].with_width(_checked(self.op_name, inputs[0], self.num_streams)),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return _weights(self.num_streams, inputs[0].width, 1)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return product(inputs[0].shape) * (2 * self.num_streams + 2)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        streams = tape.wide(inputs[0])
        mapped = _mapped(tape, streams, weights["fn"])
        numbers = tape.add(tape.mul(mapped, weights["scale"]), weights["base"])
        leading = streams.shape[:-1]
        return tape.cast(_read(tape, streams, numbers, (*leading, streams.width // self.num_streams)), inputs[0].dtype)
