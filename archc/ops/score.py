"""Attention by other scores than a softmax of products: additive ones, and kernels of a product whose rows are normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from archc.errors import GraphError
from archc.ir.op import op
from archc.ir.values import Param, TensorType
from archc.ops.attention import Attention
from archc.ops.elementwise import ACTIVATIONS
from archc.ops.masked_attention import BidirectionalAttention, CrossAttention

Meeting = Literal["product", "sum"]
Weighing = Literal["softmax", "sum"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreForm:
    """How a query q and a key k of one width meet, and what weights come of their scores.

    ``product``: ``s = f(scale <q, k>)``. ``sum``: ``s = w . f(scale (q + k))``, w a learned vector a head. f is one of
    ``ACTIVATIONS``, or nothing. ``softmax``: weights are e^s over their sum; ``sum``: s over the sum of absolute values of
    its row, which is that of the scores where f has no negative ones; a row of zeros stays one.
    """

    meeting: Meeting = "product"
    function: str | None = None
    weighing: Weighing = "softmax"
    scale: float = 1.0

    @property
    def is_plain(self) -> bool:
        """Whether it is the softmax of scaled products, which fused kernels compute."""
        return self.meeting == "product" and self.function is None and self.weighing == "softmax"


def check_form(form: ScoreForm) -> None:
    """Raise a GraphError where the function is unknown."""
    if form.function is not None and form.function not in ACTIVATIONS:
        raise GraphError(f"score: function {form.function!r} is unknown; known: {', '.join(ACTIVATIONS)}")


def form_params(form: ScoreForm, num_heads: int, width: int) -> dict[str, Param]:
    """The vector that adds up what a query and a key make together, one a head."""
    if form.meeting == "product":
        return {}
    return {"weight": Param("weight", (num_heads, width), axes=("heads", None))}


@op
class ScoreAttention(Attention):
    """``Attention`` by a ``ScoreForm``: causal over its cache, behind a prefix, or over a ring; inputs (q, k, v[, prefix])."""

    op_name = "score_attention"
    meeting: Meeting
    function: str | None
    weighing: Weighing

    @property
    def form(self) -> ScoreForm:
        """The form of its scores."""
        return ScoreForm(meeting=self.meeting, function=self.function, weighing=self.weighing, scale=self.scale)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        check_form(self.form)
        return Attention.infer(self, inputs)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return form_params(self.form, self.num_heads, self.key_dim)


@op
class BidirectionalScoreAttention(BidirectionalAttention):
    """``BidirectionalAttention`` by a ``ScoreForm``; inputs (q, k, v[, padding])."""

    op_name = "bidirectional_score_attention"
    meeting: Meeting
    function: str | None
    weighing: Weighing

    @property
    def form(self) -> ScoreForm:
        """The form of its scores."""
        return ScoreForm(meeting=self.meeting, function=self.function, weighing=self.weighing, scale=self.scale)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        check_form(self.form)
        return BidirectionalAttention.infer(self, inputs)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return form_params(self.form, self.num_heads, self.key_dim)


@op
class CrossScoreAttention(CrossAttention):
    """``CrossAttention`` by a ``ScoreForm``; inputs (q, k, v[, padding])."""

    op_name = "cross_score_attention"
    meeting: Meeting
    function: str | None
    weighing: Weighing

    @property
    def form(self) -> ScoreForm:
        """The form of its scores."""
        return ScoreForm(meeting=self.meeting, function=self.function, weighing=self.weighing, scale=self.scale)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        check_form(self.form)
        return CrossAttention.infer(self, inputs)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return form_params(self.form, self.num_heads, self.key_dim)
