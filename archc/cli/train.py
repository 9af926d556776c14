"""``archc train``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from archc.cli.options import (
    EXIT_CHECK_FAILED,
    EXIT_PROBLEMS,
    json_option,
    print_json,
    require_extra,
    set_option,
    spec_argument,
)
from archc.cli.training_options import GroupedCommand, training_options
from archc.errors import ArchcError, SpecError

if TYPE_CHECKING:
    from archc.training.record import TrainResult
    from archc.training.watching.watcher import Watcher

_SPLITS = ("tp", "pp", "ep", "dp", "cp")
_WAIT_S = 20.0
"""Ranks start this far apart at most, or each says what it found."""


@click.command("train", cls=GroupedCommand)
@spec_argument
@training_options
@set_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    spec: str,
    data: tuple[str, ...],
    eval_data: tuple[str, ...],
    held_out: float | None,
    tokenizer: str | None,
    output: str,
    resume: bool,
    steps: int | None,
    weights: str | None,
    sample_prompts: tuple[str, ...],
    tensorboard: bool,
    gpu: str | None,
    peak_flops: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
    **values: Any,
) -> None:
    """Train SPEC (a file or a shipped name) on texts: next tokens, masked tokens of an encoder, answers of a decoder with one.

    RUN holds checkpoints, metrics.jsonl, and at the end the model as archc generate and archc export take it. A run that was
    stopped ends in exit code 1 and keeps its last good checkpoint; Ctrl-C saves one first. Several ranks:

    torchrun --nproc-per-node 4 -m archc train SPEC --data FILE --steps 1000 -o RUN --dp 2 --tp 2
    """
    require_extra("torch", ("torch", "numpy", "safetensors"), "archc train")
    rank = int(os.environ.get("RANK", "0"))
    stated: dict[str, Any] = {
        name: value for name, value in values.items() if value is not None and name not in _SPLITS
    }
    splits = {name: values[name] for name in _SPLITS if values[name] is not None}
    if resume:
        steps, stated, splits, held_out = _as_the_run(output, steps, stated, splits, held_out)
    if steps is None:
        raise click.UsageError("--steps says how long; only --resume knows it from RUN")
    watchers, progress = ([], None) if rank else _watchers(tensorboard=tensorboard, as_json=as_json)
    from archc.planning.parallel import Parallel
    from archc.training.train import TOLD, train

    try:
        found = train(
            spec,
            data=data,
            steps=steps,
            output=output,
            resume=resume,
            overrides=overrides,
            tokenizer=tokenizer,
            weights=weights,
            eval_data=eval_data or None,
            held_out=held_out or 0.0,
            sample_prompts=sample_prompts,
            peak_flops_per_s=_peak(gpu, peak_flops, stated.get("dtype", "float32")),
            watchers=watchers,
            progress=progress,
            parallel=Parallel(**_with_copies(splits)),
            **stated,
        )
    except ArchcError as error:
        is_told = isinstance(error, SpecError) or TOLD in getattr(error, "__notes__", ())
        if rank and is_told and _ends_with_the_first():
            ctx.exit(EXIT_PROBLEMS)
        raise
    finally:
        for watcher in watchers:
            watcher.close()
    if rank == 0:
        _print(found, as_json=as_json)
    if found.ending != "finished":
        ctx.exit(EXIT_CHECK_FAILED)


def _ends_with_the_first() -> bool:
    """Whether torchrun ends this rank, as it does when one has ended: the first rank speaks, unless this one ends before it."""
    if sys.platform == "win32":
        return True
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return signal.sigtimedwait({signal.SIGTERM}, _WAIT_S) is not None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _as_the_run(
    output: str, steps: int | None, stated: dict[str, Any], splits: dict[str, int], held_out: float | None
) -> tuple[int, dict[str, Any], dict[str, int], float | None]:
    """Steps, options, ranks and the part that is held out; those that are not stated are the run's."""
    from archc.planning.parallel import Parallel
    from archc.training.options import TrainOptions
    from archc.training.run_folder import RunFolder

    run = RunFolder.open(output)
    known = run.options
    names = {each.name for each in fields(TrainOptions)} - {"steps", "parallel"}
    kept = {name: value for name, value in known.items() if name in names}
    kept["betas"] = tuple(kept["betas"])
    ranks: dict[str, int] = dict(known["parallel"])
    if Parallel(**ranks).ranks != int(os.environ.get("WORLD_SIZE", "1")):
        del ranks["dp"]
    if held_out is None:
        held_out = run.settings["data"].get("held_out")
    return steps or int(known["steps"]), {**kept, **stated}, splits or ranks, held_out


def _with_copies(splits: dict[str, int]) -> dict[str, int]:
    """Ranks of torchrun that no option speaks of hold copies (dp)."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    others = splits.get("tp", 1) * splits.get("pp", 1) * splits.get("cp", 1)
    return splits if "dp" in splits or size % others else {**splits, "dp": size // others}


def _watchers(*, tensorboard: bool, as_json: bool) -> tuple[list[Watcher], Callable[[str, int, int], None] | None]:
    """Who is told on the first rank, and who while data is made."""
    from archc.training.watching.lines import Lines

    found: list[Watcher] = []
    if tensorboard:
        from archc.training.watching.board import TensorBoard

        found.append(TensorBoard())
    if sys.stderr.isatty():
        # The one import that only a terminal pays for.
        from archc.training.watching.terminal import TerminalBar

        bar = TerminalBar()
        return [*found, bar], bar.preparing
    return found if as_json else [*found, Lines(click.echo)], None


def _peak(gpu: str | None, peak_flops: int | None, dtype: str) -> float | None:
    """FLOP/s of one device that MFU is a share of; None: what torch's device has."""
    if gpu is not None and peak_flops is not None:
        raise click.UsageError("--gpu and --peak-flops both say what the peak is; state one")
    if gpu is None:
        return None if peak_flops is None else float(peak_flops)
    from archc.planning.hardware import find_device

    return float(find_device(gpu).peak(dtype)[0])


def _print(found: TrainResult, *, as_json: bool) -> None:
    """How the run ended; on stderr where it did not come to its end."""
    if as_json:
        print_json(found.to_json())
    if found.ending != "finished":
        last = found.checkpoint
        kept = (
            "no checkpoint was written"
            if last is None
            else f"{last} is its last checkpoint, and --resume goes on from it"
        )
        click.echo(f"archc: {found.reason}; {kept}", err=True)
    elif not as_json:
        losses = [f"loss {found.loss:.4f}" if found.loss is not None else "no step was left to do"]
        losses += [f"eval loss {found.eval_loss:.4f}"] if found.eval_loss is not None else []
        click.echo(f"trained {found.step:,} steps on {found.tokens:,} tokens: {', '.join(losses)}")
        click.echo(f"wrote {found.folder}")
