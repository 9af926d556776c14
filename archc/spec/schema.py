"""The sections of a spec, and the layers they describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from archc.spec.caches import check_caches
from archc.spec.faults import fault, faults
from archc.spec.kind import Section
from archc.spec.nodes import is_mapping
from archc.spec.patterns import MAX_LAYERS, joined
from archc.spec.positions import check_positions
from archc.spec.schedule import Found, LayerPlan, Names, check_names, check_stack, plans
from archc.spec.slots import Slot
from archc.spec.tables import check_table
from archc.spec.values import TYPE_NAME, Dtype

PLACED_SECTIONS = ("stack", "mtp")


def _pattern_text(value: Any) -> Any:
    text = joined(value)
    if text is None:
        raise fault("should be a pattern", code="pattern")
    return " ".join(text.split())


_PATTERN_TEXT = {"type": "string", "pattern": r"^\s*(?!.*\s\*)[a-z(][a-z0-9_+*()\s]*$"}
"""What can be told of a pattern by its letters; ``schedule`` knows the rest."""

Pattern = Annotated[
    str,
    BeforeValidator(_pattern_text),
    WithJsonSchema(
        {
            "anyOf": [_PATTERN_TEXT, {"type": "array", "items": _PATTERN_TEXT, "minItems": 1}],
            TYPE_NAME: "pattern",
        }
    ),
]
"""A layer pattern as text. ``schedule`` judges it, since that takes the names and the number of layers."""


class Stack(Section):
    """Layers in a row. ``position``, ``norm`` and ``cache`` are the stack's own, None where the spec's hold.

    ``final_norm`` is None where the block decides. ``block`` is never None in a valid spec: ``mtp`` takes the stack's.
    """

    num_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    """Layers; for half-layers, half-layers."""
    block: Annotated[Any, Slot("block")] = None
    """Residual layout of every layer whose mixer states none. Default: **required** (mtp: the stack's)."""
    mixer: Pattern | None = None
    """First sub-layer of each layer, by the names in mixers. Default: **required**, or layers."""
    ffn: Pattern | None = None
    """Last sub-layer of each layer, by the names in ffns. Default: **required**, or layers."""
    layers: Pattern | None = None
    """Both tracks in one, of mixer, ffn or mixer+ffn; instead of mixer and ffn."""
    final_norm: bool | None = None
    """Whether a norm follows the last layer. Default: the block's: false where its layers end in a norm."""
    mask: Literal["causal"] = "causal"
    """What a token may see."""
    position: Annotated[Any, Slot("position")] = None
    """This stack's own, used whole. Default: the spec's."""
    norm: Annotated[Any, Slot("norm")] = None
    """This stack's own, used whole. Default: the spec's."""
    cache: Annotated[Any, Slot("cache", default_kind="full", key="policy")] = None
    """This stack's own, used whole. Default: the spec's."""


class Spec(Section):
    """One architecture. Values of slots are instances of the installed kinds."""

    spec_version: Literal[1]
    """Version of this language."""
    name: Annotated[str, Field(min_length=1)]
    """Name of the architecture; a child states its own."""
    description: str = ""
    """One line, with the paper."""
    dtype: Dtype = "bfloat16"
    """dtype of weights and activations."""
    max_position_embeddings: Annotated[int, Field(ge=1)] | None = None
    """Context length the model was made for; rows of a learned table."""
    tokenizer: Annotated[Any, Slot("tokenizer")]
    """What turns input into ids."""
    embedding: Annotated[Any, Slot("embedding", default_kind="token")]
    """What turns ids into vectors; the width of the model is stated here."""
    position: Annotated[Any, Slot("position")]
    """How order is seen; default of every mixer."""
    norm: Annotated[Any, Slot("norm")]
    """Normalisation everywhere unless a stack or a mixer states its own."""
    mixers: Annotated[dict[str, Annotated[Any, Slot("mixer")]], Field(min_length=1)]
    """Token mixers, named once and placed by the stack."""
    ffns: dict[str, Annotated[Any, Slot("ffn")]] = Field(default_factory=dict)
    """Feed-forwards, likewise. Default: empty."""
    stack: Stack
    """The one stack of a decoder-only model."""
    mtp: Stack | None = None
    """Multi-token-prediction layers after the stack; counted apart."""
    head: Annotated[Any, Slot("head", default_kind="lm")] = Field(default_factory=dict, validate_default=True)
    """What reads the last layer. Default: lm."""
    cache: Annotated[Any, Slot("cache", default_kind="full", key="policy")] = Field(
        default_factory=dict, validate_default=True
    )
    """How declared state is stored. Default: policy full."""

    def schedule(self) -> tuple[LayerPlan, ...]:
        """The stack's layers, first to last."""
        return plans(self.stack.__dict__, self._names())

    def mtp_schedule(self) -> tuple[LayerPlan, ...]:
        """The multi-token-prediction layers; nothing without ``mtp``."""
        return () if self.mtp is None else plans(self.mtp.__dict__, self._names())

    def _names(self) -> Names:
        return Names(tuple(self.mixers), tuple(self.ffns))

    @model_validator(mode="after")
    def _check(self) -> Self:
        found = list(check_layers(self.__dict__))
        if found:
            raise faults("Spec", found)
        if self.mtp is not None and self.mtp.block is None:
            # Frozen for its readers; this is still its making.
            vars(self)["mtp"] = self.mtp.model_copy(update={"block": self.stack.block})
        return self


def check_layers(spec: Mapping[str, Any]) -> Iterator[Found]:
    """Mistakes in names, patterns, caches and positions, for a valid spec's fields as well as for any plain data."""
    mixers, ffns = (_keys(spec.get(section)) for section in ("mixers", "ffns"))
    names = Names(mixers, ffns)
    sections = {section: _plain(spec.get(section)) for section in PLACED_SECTIONS}
    yield from check_names(names)
    stack = sections.get("stack")
    if is_mapping(stack) and stack.get("block") is None:
        yield ("stack", "block"), PydanticCustomError("missing", "block is required")
    for section in PLACED_SECTIONS:
        stack = sections.get(section)
        if is_mapping(stack) and mixers:
            yield from check_stack(section, stack, names)
    stacks = {section: stack for section, stack in sections.items() if is_mapping(stack)}
    yield from check_caches(spec, stacks)
    yield from check_positions(spec, stacks)
    yield from check_table(spec)


def _plain(stack: Any) -> Any:
    return stack.__dict__ if isinstance(stack, Stack) else stack


def _keys(value: Any) -> tuple[str, ...]:
    return tuple(value) if is_mapping(value) else ()
