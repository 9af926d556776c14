"""Attention by other scores than a softmax of products: additive ones, and kernels of a product whose rows are normalised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from archc.errors import GraphError
from archc.ir.op import op
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, TensorType
from archc.ops.attention import Attention
from archc.ops.elementwise import ACTIVATIONS, activated
from archc.ops.masked_attention import BidirectionalAttention, CrossAttention
from archc.ops.softmax import for_products, joined_heads

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


def saves_scored(
    tape: Tape,
    q: Held,
    k: Held,
    v: Held,
    form: ScoreForm,
    weight: Held | None,
    *,
    mask: Held | None = None,
) -> Held:
    """What ``attend_scored`` of the torch leaves keeps of heads (batch, heads, rows, width); (batch, seq, heads x value)."""
    weights = tape.cast(saves_weights(tape, saves_scores(tape, q, k, form, weight), form, mask), v.dtype)
    o = tape.matmul(weights, for_products(tape, v), (*q.shape[:-1], v.width))
    return joined_heads(tape, o)


def saves_scores(tape: Tape, q: Held, k: Held, form: ScoreForm, weight: Held | None) -> Held:
    """What ``meet`` keeps; scores (batch, heads, seq, keys)."""
    shape = (*q.shape[:-1], k.shape[2])
    if weight is None:
        scores = tape.matmul(for_products(tape, q), for_products(tape, k), shape)
        scores = tape.scaled(tape.wide(scores))
        return scores if form.function is None else activated(tape, form.function, scores)
    met = tape.scaled(tape.fresh((q, k), (*shape, q.width)))
    if form.function is not None:
        met = activated(tape, form.function, met)
    batch, heads = q.shape[:2]
    several = weight if 1 in (heads, tape.number(batch)) else tape.copy(weight, (batch, heads, q.width))
    return tape.wide(tape.matmul(met, several, shape))


def saves_weights(tape: Tape, scores: Held, form: ScoreForm, mask: Held | None) -> Held:
    """What ``weigh`` keeps: a mask only where nothing can be added."""
    if form.weighing == "softmax":
        return tape.of_output(scores if mask is None else tape.add(scores))
    seen = scores if mask is None else tape.masked_fill(scores, tape.new(mask.shape, "bool"))
    total = tape.of_input(tape.sum(tape.of_input(seen), (*seen.shape[:-1], 1)))
    return tape.div(seen, total)


@op
class ScoreAttention(Attention):
    """``Attention`` by a ``ScoreForm``: causal over its cache, behind a prefix, or over a ring; inputs (q, k, v[, prefix])."""

    op_name = "score_attention"
    adds_masks: ClassVar[bool] = False
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

    def kernel_saves(
        self, tape: Tape, q: Held, k: Held, v: Held, mask: Held | None, weights: Mapping[str, Held]
    ) -> Held:
        seq = q.shape[2]
        if mask is None and tape.number(seq) > 1:
            mask = tape.new((seq, seq), "bool")
        return saves_scored(tape, q, k, v, self.form, weights.get("weight"), mask=mask)


@op
class BidirectionalScoreAttention(BidirectionalAttention):
    """``BidirectionalAttention`` by a ``ScoreForm``; inputs (q, k, v[, padding])."""

    op_name = "bidirectional_score_attention"
    adds_masks: ClassVar[bool] = False
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

    def kernel_saves(
        self, tape: Tape, q: Held, k: Held, v: Held, mask: Held | None, weights: Mapping[str, Held]
    ) -> Held:
        return saves_scored(tape, q, k, v, self.form, weights.get("weight"), mask=mask)


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

    def kernel_saves(self, tape: Tape, q: Held, k: Held, v: Held, weights: Mapping[str, Held]) -> Held:
        return saves_scored(tape, q, k, v, self.form, weights.get("weight"))
