"""Several residual streams, mixed anew around each branch."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt

from archc.families import Block, NormLayer, SubLayer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.hyper_connection import HyperConnection, HyperHead, HyperMix


class HyperConnections(Block):
    """Manifold-constrained hyper-connections (mHC, arXiv 2512.24880; DeepSeek-V4): n residual streams instead of one.

    A branch reads a mean of the streams, its weights read off the streams of the same token. Behind it each stream is a mix of
    all, by a matrix that Sinkhorn's iteration makes doubly stochastic, so that depth neither blows up nor dies, plus the
    branch times a number of its own. Streams begin as copies of the embedding; a last mean stands before the final norm.
    """

    keeps_streams: ClassVar[bool] = True

    num_streams: PositiveInt
    """Residual streams."""
    sinkhorn_iters: PositiveInt = 20
    """Times that columns of a mixing matrix are normalised; its rows once less, after the softmax."""
    eps: PositiveFloat = 1e-6
    """Added to means' weights, to the matrix after its softmax, and to sums before a division."""
    norm_eps: PositiveFloat = 1e-6
    """Added to the mean square of the streams that the weights are read off."""

    def define(self, g: Builder, x: Value, *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer) -> Value:
        raise AssertionError("streams are kept, so layers are placed by layer()")

    def enter(self, g: Builder, x: Value) -> tuple[Value, ...]:
        return (x if self.num_streams == 1 else g.concat(*(x,) * self.num_streams),)

    def layer(
        self, g: Builder, streams: tuple[Value, ...], *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer
    ) -> tuple[Value, ...]:
        (x,) = streams
        for name, branch in (("mixer", mixer), ("ffn", ffn)):
            if branch is None:
                continue
            op = HyperConnection(
                num_streams=self.num_streams,
                sinkhorn_iters=self.sinkhorn_iters,
                eps=self.eps,
                norm_eps=self.norm_eps,
            )
            read, post, comb = g.emit(op, (x,), name=f"{name}_hc")
            y = branch(norm(f"{name}_norm", read))
            (x,) = g.emit(HyperMix(num_streams=self.num_streams), (x, y, post, comb))
        return (x,)

    def leave(self, g: Builder, streams: tuple[Value, ...]) -> Value:
        op = HyperHead(num_streams=self.num_streams, eps=self.eps, norm_eps=self.norm_eps)
        return g.emit(op, streams, name="hc_head")[0]
