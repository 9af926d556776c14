"""Small kinds that show what the language can say; the real ones are tested with the real specs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import PositiveInt

from archc import registry
from archc.errors import SpecError
from archc.spec.kind import Kind
from archc.spec.load import loads_spec
from archc.spec.slots import Slot
from archc.spec.values import ONE, Dtype, Scale


class Order(Kind):
    """A position with a nested slot and a pair."""

    family: ClassVar[str] = "position"
    theta: float
    limits: tuple[float, float] | None = None
    scaling: Annotated[Any, Slot("scaling")] = None


class Stretch(Kind):
    family: ClassVar[str] = "scaling"
    factor: float


class Attend(Kind):
    """A mixer with a rule, a scale, a choice, a union and a slot."""

    family: ClassVar[str] = "mixer"
    num_heads: PositiveInt
    num_kv_heads: PositiveInt = 1
    head_dim: PositiveInt
    sliding_window: PositiveInt | None = None
    softmax_scale: Scale | None = None
    qk_norm: Literal["none", "head", "width", "unit"] = "none"
    position: Annotated[Any, Slot("position")] = None
    tokens: int | list[int] | None = None

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.num_heads % self.num_kv_heads:
            yield "num_kv_heads", f"should divide num_heads, {self.num_heads} (found {self.num_kv_heads})"


class WideAttend(Kind):
    """Lacks most keys of ``Attend``."""

    family: ClassVar[str] = "mixer"
    num_heads: PositiveInt
    head_dim: PositiveInt
    width: PositiveInt = 1


class Forward(Kind):
    family: ClassVar[str] = "ffn"
    intermediate_size: PositiveInt
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"
    multiplier: Scale = ONE


class Sandwich(Kind):
    family: ClassVar[str] = "block"
    residual_multiplier: Scale = ONE


class Window(Kind):
    family: ClassVar[str] = "cache"
    window: PositiveInt
    dtype: Dtype | None = None


KINDS: dict[tuple[str, str], type[Kind]] = {
    ("position", "zorder"): Order,
    ("scaling", "zstretch"): Stretch,
    ("mixer", "zattend"): Attend,
    ("mixer", "zwide"): WideAttend,
    ("ffn", "zforward"): Forward,
    ("block", "zsandwich"): Sandwich,
    ("cache", "zwindow"): Window,
}


@pytest.fixture(autouse=True, scope="module")
def kinds() -> Iterator[dict[tuple[str, str], type[Kind]]]:
    with registry.temporary(KINDS):
        yield KINDS


@pytest.fixture(scope="session")
def mistakes() -> Callable[..., list[str]]:
    """The messages of a spec that must not load, in order."""

    def found(text: str, overrides: Sequence[str] = ()) -> list[str]:
        with pytest.raises(SpecError) as caught:
            loads_spec(text, file="my.yaml", overrides=overrides)
        return [str(problem) for problem in caught.value.problems]

    return found


BASE = """\
spec_version: 1
name: small
tokenizer: {kind: external, vocab_size: 100}
embedding: {hidden_size: 64, tie_word_embeddings: true}
position: none
norm: {kind: rms_norm, eps: 1e-5}
mixers:
  kda: {kind: zattend, num_heads: 4, head_dim: 16}
  mla: {kind: zattend, num_heads: 2, head_dim: 32}
ffns:
  dense: {kind: zforward, intermediate_size: 128}
  moe: {kind: zforward, intermediate_size: 32}
stack:
  num_layers: 4
  block: pre_norm
  mixer: kda*3 mla
  ffn: dense moe*
"""


@pytest.fixture(scope="session")
def base() -> str:
    """A valid spec of 17 lines: mixers in line 7, the stack in line 13."""
    return BASE
