"""What a run is given by keyword, and the texts of its tokenizer."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TypedDict

from archc.errors import ArchcError
from archc.families import Tokenizer
from archc.generation.text import Text
from archc.ir.tape import Recompute
from archc.planning.parallel import Parallel
from archc.spec.schema import Spec
from archc.torch_backend.generate import as_text


class Stated(TypedDict, total=False):
    """Options of ``TrainOptions`` beside ``steps``."""

    seq_len: int
    batch_size: int
    micro_batch_size: int | None
    seed: int
    packing: str
    optimizer: str
    lr: float | None
    min_lr_ratio: float | None
    warmup_steps: int | None
    schedule: str
    decay_steps: int | None
    weight_decay: float
    decay_embeddings: bool
    betas: tuple[float, float]
    eps: float
    momentum: float
    clip_norm: float | None
    dtype: str
    recompute: Recompute
    compile: bool
    loss_chunk: int | None
    z_loss: float
    router_bias_rate: float
    balance_loss: float
    balance_over: str
    router_z_loss: float
    parallel: Parallel
    zero: int
    pp_schedule: str
    device: str | None
    checkpoint_every: int | None
    keep: int
    log_every: int
    eval_every: int | None
    eval_batches: int
    sample_every: int | None
    spike_factor: float | None


def texts_of(spec: Spec, source: str | PathLike[str], tokenizer: object) -> tuple[Text | None, Text | None]:
    """(what the predicted ids are, what an encoder reads): the tokenizer that is handed over, or those that the spec names.

    None where there is none: data of ids needs none.

    Raises:
        ArchcError: a tokenizer can't be read, or one is handed over for two.
    """
    kinds = [stack.tokenizer or spec.tokenizer for stack in spec.stacks().values()]
    reads, writes = kinds[0], kinds[-1]
    if tokenizer is not None:
        if reads is not writes:
            raise ArchcError(
                f"{spec.name}: encoder and decoder have tokenizers of their own; the spec names their files"
            )
        text = as_text(_file_of(tokenizer))
        return text, text
    folder = Path(source).parent
    text = _own(writes, folder)
    return text, text if reads is writes else _own(reads, folder)


def _own(kind: Tokenizer, folder: Path) -> Text | None:
    return as_text(kind.load(folder)) if kind.has_file() else None


def _file_of(tokenizer: object) -> object:
    if not isinstance(tokenizer, str | PathLike):
        return tokenizer
    path = Path(tokenizer)
    return path / "tokenizer.json" if path.is_dir() else path
