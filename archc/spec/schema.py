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
from archc.spec.sections import DEFAULT_MASKS, STACKS, check_sections
from archc.spec.sharing import check_sharing
from archc.spec.slots import Slot
from archc.spec.tables import check_table
from archc.spec.values import TYPE_NAME, Dtype

_HEAD = Slot("head", default_kind="lm")

PLACED_SECTIONS = (*STACKS, "mtp")


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
    """Layers in a row. ``tokenizer``, ``embedding``, ``position``, ``norm`` and ``cache`` are None where the spec's hold.

    ``final_norm`` is None where the block decides. In a valid spec ``block`` is never None, since ``mtp`` takes the stack's,
    nor is ``mask``, which the section decides unless it is stated.
    """

    num_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    """Layers; for half-layers, half-layers."""
    block: Annotated[Any, Slot("block")] = None
    """Residual layout of every layer whose mixer states none. Default: **required** (mtp: the stack's)."""
    mixer: Pattern | None = None
    """First sub-layer of each layer, by the names in mixers. Default: **required**, or layers."""
    cross: Pattern | None = None
    """Sub-layer between the two, which reads the encoder, by the names in mixers. Default: **required** in decoder."""
    ffn: Pattern | None = None
    """Last sub-layer of each layer, by the names in ffns. Default: **required**, or layers."""
    layers: Pattern | None = None
    """Both tracks in one, of mixer, ffn or mixer+ffn; instead of mixer and ffn."""
    final_norm: bool | None = None
    """Whether a norm follows the last layer. Default: the block's: false where its layers end in a norm."""
    mask: Literal["causal", "bidirectional", "prefix"] | None = None
    """What a token may see: itself and what came before, everything, or a first part whole and what came before. Default:
    causal; bidirectional in encoder."""
    tokenizer: Annotated[Any, Slot("tokenizer")] = None
    """This stack's own, used whole. Default: the spec's."""
    embedding: Annotated[Any, Slot("embedding", default_kind="token")] = None
    """This stack's own, used whole. Default: the spec's; an encoder and a decoder then share one table."""
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
    stack: Stack | None = None
    """The one stack of a decoder-only model. Default: **required**, or encoder, or encoder and decoder."""
    encoder: Stack | None = None
    """A stack that sees everything, alone or read by a decoder."""
    decoder: Stack | None = None
    """A stack that sees what came before and, through cross, the encoder."""
    mtp: Stack | None = None
    """Multi-token-prediction layers after the stack; counted apart."""
    head: Annotated[Any, Slot("head", default_kind="lm")] = None
    """What reads the last layer. Default: lm; none for an encoder alone."""
    cache: Annotated[Any, Slot("cache", default_kind="full", key="policy")] = Field(
        default_factory=dict, validate_default=True
    )
    """How declared state is stored. Default: policy full."""

    @property
    def main(self) -> Stack:
        """The stack that the head reads: the decoder where there is one, else the one stack or encoder."""
        found = self.decoder or self.stack or self.encoder
        assert found is not None, "a valid spec has a stack"
        return found

    def stacks(self) -> dict[str, Stack]:
        """Section -> stack, in the order in which they run; without ``mtp``."""
        found = {name: getattr(self, name) for name in STACKS}
        return {name: stack for name, stack in found.items() if stack is not None}

    def schedule(self, section: str = "") -> tuple[LayerPlan, ...]:
        """The layers of a section, first to last, by default of the stack that the head reads."""
        return plans((getattr(self, section) if section else self.main).__dict__, self._names())

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
        # Frozen for its readers; this is still its making.
        for section in PLACED_SECTIONS:
            stack: Stack | None = getattr(self, section)
            if stack is not None:
                made = {"mask": stack.mask or DEFAULT_MASKS[section], "block": stack.block or self.main.block}
                vars(self)[section] = stack.model_copy(update=made)
        if self.head is None:
            alone = self.encoder is not None and self.decoder is None
            vars(self)["head"] = _HEAD.validate("none" if alone else "lm")
        return self


def check_layers(spec: Mapping[str, Any]) -> Iterator[Found]:
    """Mistakes in names, patterns, caches and positions, for a valid spec's fields as well as for any plain data."""
    mixers, ffns = (_keys(spec.get(section)) for section in ("mixers", "ffns"))
    names = Names(mixers, ffns)
    sections = {section: _plain(spec.get(section)) for section in PLACED_SECTIONS}
    yield from check_names(names)
    for section in STACKS:
        stack = sections.get(section)
        if is_mapping(stack) and stack.get("block") is None:
            yield (section, "block"), PydanticCustomError("missing", "block is required")
    for section in PLACED_SECTIONS:
        stack = sections.get(section)
        if is_mapping(stack) and mixers:
            yield from check_stack(section, stack, names)
    stacks = {section: stack for section, stack in sections.items() if is_mapping(stack)}
    yield from check_sections(spec, stacks)
    yield from check_caches(spec, stacks)
    yield from check_positions(spec, stacks)
    yield from check_sharing(spec, stacks, names)
    yield from check_table(spec)


def _plain(stack: Any) -> Any:
    return stack.__dict__ if isinstance(stack, Stack) else stack


def _keys(value: Any) -> tuple[str, ...]:
    return tuple(value) if is_mapping(value) else ()
