"""Mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, cast

from pydantic import NonNegativeInt, PositiveInt, model_validator

from archc.families import FFN
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.moe import Experts
from archc.spec.faults import fault, faults
from archc.spec.slots import Slot


class MoE(FFN):
    """Mixture of experts: routed ones chosen a token, shared ones always on (DeepSeekMoE, arXiv 2401.06066)."""

    num_experts: PositiveInt
    """Routed experts."""
    num_experts_per_tok: PositiveInt
    """Experts chosen a token."""
    intermediate_size: PositiveInt
    """Width of one expert."""
    expert: Annotated[Any, Slot("ffn", default_kind="swiglu")] = None
    """What an expert is; its width is given above. Default: swiglu."""
    num_shared_experts: NonNegativeInt = 0
    """Experts that are always on, held as one wide one."""
    shared_intermediate_size: PositiveInt | None = None
    """Their width together. Default: num_shared_experts x intermediate_size."""
    shared_gate: bool = False
    """Their output is multiplied by sigmoid(w x) (Qwen)."""
    latent_size: PositiveInt | None = None
    """Width in which the routed experts work. Default: the model's."""
    latent_norm: bool = False
    """A norm of the routed experts' sum, in that width (Kimi K3)."""
    router: Annotated[Any, Slot("router", default_kind="topk")]
    """What chooses and weighs the experts; its kind is topk unless stated."""

    @model_validator(mode="before")
    @classmethod
    def _give_expert_its_width(cls, data: Any) -> Any:
        """The width of an expert is stated once, here; the kind in ``expert`` gets it."""
        if not isinstance(data, Mapping):
            return data
        keys = cast("Mapping[str, Any]", data)
        stated: Any = keys.get("expert")
        expert: Any = {"kind": stated or "swiglu"} if stated is None or isinstance(stated, str) else stated
        if not isinstance(expert, Mapping) or "intermediate_size" not in keys:
            return keys
        if "intermediate_size" in expert:
            hint = "The width of an expert is the intermediate_size of the moe"
            raise faults(
                cls.__name__, [(("expert", "intermediate_size"), fault("belongs one level up", hint, code="rule"))]
            )
        return {**keys, "expert": {**cast("Mapping[str, Any]", expert), "intermediate_size": keys["intermediate_size"]}}

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.num_experts_per_tok > self.num_experts:
            yield (
                "num_experts_per_tok",
                f"should be at most num_experts, {self.num_experts} (found {self.num_experts_per_tok})",
            )
        for field, message in self.router.misfits(self.num_experts, self.num_experts_per_tok):
            yield f"router.{field}", message
        if self.expert.as_expert() is None:
            yield "expert", f"{self.expert.kind_name} can't be an expert: it is no plain or gated feed-forward"
        if self.shared_intermediate_size is not None and not self.num_shared_experts:
            yield "shared_intermediate_size", "is a width without an expert: num_shared_experts is 0"
        if self.shared_gate and not self.num_shared_experts:
            yield "shared_gate", "gates nothing: num_shared_experts is 0"
        if self.latent_norm and self.latent_size is None:
            yield "latent_norm", "needs latent_size"

    def define(self, g: Builder, x: Value) -> Value:
        indices, weights = self.router.choose(g, x, self.num_experts, self.num_experts_per_tok)
        inner = x
        if self.latent_size is not None:
            inner = g.linear("latent_down_proj", x, self.latent_size)
        activation, bias = self.expert.as_expert()
        op = Experts(
            num_experts=self.num_experts,
            top_k=self.num_experts_per_tok,
            intermediate_size=self.intermediate_size,
            activation=activation,
            bias=bias,
            weight_on=self.router.weighs(),
        )
        y = g.experts("experts", inner, indices, weights, op)
        if self.latent_norm:
            y = g.norm("latent_norm", y)
        if self.latent_size is not None:
            y = g.linear("latent_up_proj", y, x.width)
        if self.num_shared_experts:
            y = g.add(y, g.scope("shared_experts", self._shared, x, label="shared experts"))
        return y

    def _shared(self, g: Builder, x: Value) -> Value:
        width = self.shared_intermediate_size or self.num_shared_experts * self.intermediate_size
        y = self.expert.model_copy(update={"intermediate_size": width}).define(g, x)
        return g.mul(y, g.sigmoid(g.linear("gate", x, 1))) if self.shared_gate else y
