"""A folder that ``archc export`` wrote, read and held against what lies in it."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt, StringConstraints, ValidationError

from archc.errors import ArchcError
from archc.units import tensor_bytes

CONTRACT, FORMAT = "archc.json", 1
MODEL, DATA = "model.onnx", "model.onnx.data"
LENGTHS = ("input_ids", "past_length", "seq_length", "kv_length", "max_length")
"""The inputs of every file over caches that archc's own runtime runs."""
ENCODER_MASK, PREFIX_LENGTH = "encoder_attention_mask", "prefix_length"
"""Inputs that stay as they are while a text is written."""
_STEPS = re.compile(r"^ceil\(\(capacity\)/(\d+)\)$")
Dimension = Annotated[str, StringConstraints(pattern=r"^(batch|capacity|source|ceil\(\(capacity\)/\d+\))$")]
"""``ceil((capacity)/n)``: a row every n tokens."""


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Tensor(_Plain):
    """An input or an output; symbolic dimensions are texts."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Cache(_Plain):
    """What one layer keeps, as input and as output of a call; ``in_place`` says whether both may be one buffer.

    What grows with the ``source`` is an output of the encoder's file and stays as it is.
    """

    input: str
    output: str
    dtype: str
    shape: tuple[int | Dimension, ...]
    growth: Literal["append", "ring", "fixed", "source"]
    bytes_per_token: int
    bytes_per_sequence: int
    bytes_per_source_token: int = 0
    in_place: bool = False

    def allocated(self, *, batch: int, capacity: int) -> tuple[int, ...]:
        """The shape for so many sequences and rows."""
        sizes = {"batch": batch, "capacity": capacity}
        return tuple(dim if isinstance(dim, int) else sizes.get(dim) or _rows(dim, capacity) for dim in self.shape)

    def bytes(self, capacity: int) -> int:
        """Bytes of one sequence."""
        if any(isinstance(dim, str) and _STEPS.match(dim) for dim in self.shape):
            return tensor_bytes(prod(self.allocated(batch=1, capacity=capacity)), self.dtype)
        return self.bytes_per_sequence + self.bytes_per_token * capacity


def _rows(dim: str, capacity: int) -> int:
    """Rows of a cache that has one every few tokens."""
    match = _STEPS.match(dim)
    assert match is not None, f"{dim} is no dimension of a cache"
    return -(-capacity // int(match[1]))


class EncoderFile(_Plain):
    """The file that reads what a decoder answers, and what it is given."""

    file: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Made(_Plain):
    """What the file was made for."""

    provider: Literal["cuda", "cpu"]
    dtype: str
    io: str


class TokenizerFile(_Plain):
    """Where the tokenizer lies."""

    file: str


class SourceTokenizerFile(_Plain):
    """Where an encoder's own tokenizer lies; nowhere where it has one that the folder has not."""

    file: str | None


class Contract(_Plain):
    """The parts of ``archc.json`` that running needs."""

    format: Literal[1]
    name: str
    mask: Literal["causal", "bidirectional", "prefix"] = "causal"
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    encoder: EncoderFile | None = None
    caches: tuple[Cache, ...]
    capacity_multiple: PositiveInt
    reserved_rows: int
    max_model_len: PositiveInt
    vocab_size: PositiveInt | None
    source_vocab_size: PositiveInt | None = None
    start_id: int | None = None
    batched_chunks: bool
    ragged_prompts: bool
    target: Made
    files: dict[str, int]
    special_token_ids: dict[str, list[int]]
    tokenizer: TokenizerFile | None
    source_tokenizer: SourceTokenizerFile | None = None

    def capacity(self, tokens: int) -> int:
        """Rows of a full cache for so many tokens."""
        multiple = self.capacity_multiple
        return -(-(tokens + self.reserved_rows) // multiple) * multiple

    def cache_bytes(self, *, batch: int, capacity: int, source: int = 0) -> int:
        """Bytes of all caches together, each counted once; ``source`` are the tokens that an encoder has read."""
        return batch * sum(cache.bytes(capacity) + cache.bytes_per_source_token * source for cache in self.caches)

    def eos(self) -> tuple[int, ...]:
        """Ids that end a text."""
        return tuple(self.special_token_ids.get("eos", ()))

    def further_inputs(self) -> tuple[str, ...]:
        """Ids of a second kind, (batch, seq)."""
        known = (*LENGTHS, ENCODER_MASK, PREFIX_LENGTH)
        return tuple(given.name for given in self.inputs if given.name not in known)


def read_folder(folder: Path) -> Contract:
    """The contract of a folder whose files are all there and whole.

    Raises:
        ArchcError: the folder is not an export, a file is missing or of another size, or another runtime runs it.
    """
    if not folder.is_dir():
        raise ArchcError(f"{folder} is no folder; archc export SPEC -o {folder} makes one")
    path = folder / CONTRACT
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ArchcError(
            f"{folder} has no {CONTRACT}, so it is no export of archc; archc export SPEC -o DIR makes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ArchcError(f"{path} can't be read: {error}") from error
    try:
        contract = Contract.model_validate_json(text)
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:3])
        raise ArchcError(f"{path} is not what archc {_format(text)} writes: {found}. Export the model again") from error
    _check_io(folder, contract)
    _check_files(folder, contract)
    return contract


def _format(text: str) -> str:
    return f"(format {FORMAT})" if '"format"' in text else "export"


def _check_io(folder: Path, contract: Contract) -> None:
    if contract.target.io != "archc":
        raise ArchcError(
            f"{folder} was exported with --io {contract.target.io}, which onnxruntime-genai runs; "
            "export it with --io archc to run it here"
        )
    names = [given.name for given in contract.inputs]
    lacking = [name for name in LENGTHS if name not in names and contract.mask != "bidirectional"]
    if lacking:
        raise ArchcError(f"{folder / CONTRACT} lists no input {', '.join(lacking)}; export the model again")


def _check_files(folder: Path, contract: Contract) -> None:
    lines: list[str] = []
    for name, size in contract.files.items():
        path = folder / name
        if not path.is_file():
            lines.append(f"{name} is missing ({size:,} B)")
        elif path.stat().st_size != size:
            lines.append(f"{name} has {path.stat().st_size:,} B, not {size:,}")
    if lines:
        raise ArchcError(f"{folder} is not whole: {'; '.join(lines)}. Copy or export it again")
    for needed in (MODEL, *([contract.encoder.file] if contract.encoder is not None else [])):
        if needed not in contract.files:
            raise ArchcError(f"{folder / CONTRACT} lists no {needed}; export the model again")
    if DATA not in contract.files and not (folder / DATA).is_file():
        raise ArchcError(
            f"{folder} was exported with --no-weights, so it has no {DATA}; export it with weights to run it"
        )
