"""Mixture of experts: ``route`` chooses and weighs, ``experts`` computes and is blind to how it was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import Dim, product
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, TensorType
from archc.ops.elementwise import Activation, GatedActivation


@op
class Route(Op):
    """Scores in float32, top-k choice, weights: x (batch, seq, D) -> indices, weights (batch, seq, k).

    ``correction_bias`` is added for the choice only and is no parameter (arXiv 2412.19437). With groups, the best
    ``topk_group`` of ``n_group`` stay, judged by their ``max`` (arXiv 2405.04434) or by ``top2_sum``.
    """

    op_name = "route"
    num_experts: int
    top_k: int
    scoring_func: str
    norm_topk_prob: bool
    routed_scaling_factor: float = 1.0
    correction_bias: bool = False
    bias: bool = False
    n_group: int = 1
    topk_group: int = 1
    group_score: str = "top2_sum"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if self.top_k > self.num_experts:
            raise GraphError(f"route: {self.top_k} of {self.num_experts} experts can't be chosen")
        leading = inputs[0].shape[:-1]
        return (TensorType((*leading, self.top_k), "int64"), TensorType((*leading, self.top_k), "float32"))

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        experts = self.num_experts
        params = {"weight": Param("weight", (experts, inputs[0].width))}
        if self.bias:
            params["bias"] = Param("bias", (experts,), init="zeros")
        if self.correction_bias:
            name = "e_score_correction_bias"
            params[name] = Param(name, (experts,), init="zeros", dtype="float32", trainable=False)
        return params

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return product(inputs[0].shape) * (2 * self.num_experts)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> tuple[Held, Held]:
        x = inputs[0]
        scores = scored(tape, self.scoring_func, x, weights["weight"])
        # Nothing is kept of the way to the choice: no gradient comes back on it.
        indices = tape.new((*x.shape[:-1], self.top_k), "int64")
        return indices, chosen_weights(tape, scores, indices, self.norm_topk_prob)


def scored(tape: Tape, function: str, x: Held, weight: Held) -> Held:
    """Scores of all experts, (batch, seq, experts) in float32, on a tape."""
    logits = tape.linear(tape.cast(x, "float32"), tape.cast(weight, "float32"))
    return tape.of_output(tape.of_input(logits) if function == "sqrtsoftplus" else logits)


def chosen_weights(tape: Tape, scores: Held, indices: Held, normed: bool) -> Held:
    """Weights of the chosen experts, (batch, seq, k) in float32, on a tape."""
    weights = tape.gather(scores, indices, indices.shape)
    if normed:
        weights = tape.div(weights, tape.scaled(tape.sum(weights, (*indices.shape[:-1], 1))))
    return tape.scaled(weights)


@op
class Experts(Op):
    """Feed-forwards, stacked: gate_proj and up_proj (E, I, D), down_proj (E, D, I); inputs (x, indices, weights).

    Under a plain activation there is no gate_proj. Gate and up are apart so that the ffn axis can be cut in contiguous
    pieces. ``weight_on`` says whether the weight multiplies an expert's output or its input.
    """

    op_name = "experts"
    pieces = (("intermediate_size", "ffn"),)
    num_experts: int
    top_k: int
    intermediate_size: int
    activation: GatedActivation | Activation
    bias: bool = False
    weight_on: str = "output"

    @property
    def gated(self) -> bool:
        """Whether there is a gate_proj."""
        return isinstance(self.activation, GatedActivation)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, indices, weights = inputs
        if indices.width != self.top_k or weights.width != self.top_k:
            raise GraphError(f"experts: {self.top_k} a token are expected, the router gives {indices.width}")
        return (x.with_width(x.width),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        experts, inner, width = self.num_experts, self.intermediate_size, inputs[0].width
        params: dict[str, Param] = {}
        for name, shape, axes in (
            ("gate_proj", (experts, inner, width), ("experts", "ffn", None)),
            ("up_proj", (experts, inner, width), ("experts", "ffn", None)),
            ("down_proj", (experts, width, inner), ("experts", None, "ffn")),
        ):
            if name == "gate_proj" and not self.gated:
                continue
            params[name] = Param(name, shape, axes=axes)
            if self.bias:
                params[f"{name}_bias"] = Param(f"{name}_bias", shape[:2], axes=axes[:2], init="zeros")
        return params

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return product(inputs[0].shape) * ((6 if self.gated else 4) * self.top_k * self.intermediate_size)

    def active_elements(self, role: str, param: Param) -> int:
        return param.elements // self.num_experts * self.top_k

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x, indices, chosen = inputs
        rows = product(indices.shape)
        # Where rows come from, which expert each has, where each goes back to, and where each expert's end.
        token, sorted_by, back = (tape.new((rows,), "int64") for _ in range(3))
        ends = tape.new((self.num_experts,), "int64", axis="experts")
        factor = tape.cast(tape.take(chosen, tape.new((rows,), "int64"), (rows, 1)), x.dtype)

        def projected(each: Held, name: str, width: int, axis: str | None) -> Held:
            y = tape.fresh((each, weights[name]), (rows, width), keeps=(each, ends), axis=axis)
            y, bias = tape.product(y), weights.get(f"{name}_bias")
            return y if bias is None else tape.add(y, tape.take(bias, sorted_by, y.shape))

        each = tape.take(x, token, (rows, x.width))
        if self.weight_on == "input":
            each = tape.mul(each, factor)
        names = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
        wide = [projected(each, name, self.intermediate_size, "ffn") for name in names]
        middle = self.activation.saves(tape, wide, {})
        y = projected(middle, "down_proj", x.width, None)
        if self.weight_on == "output":
            y = tape.mul(y, factor)
        return tape.sum(tape.take(y, back, y.shape), x.shape)
