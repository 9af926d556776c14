"""What a step says to people, in one line; and those lines printed, where nobody looks at a terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from archc.training.watching.watcher import Quiet, Record, RunInfo, Sample
from archc.units import gib, si

Say = Callable[[str], None]

_NAMED = {"loss": "loss", "lr": "lr", "grad_norm": "grad norm", "eval_loss": "eval loss"}
_MEASURED = ("step", "time", "tokens", "step_s", "tokens_per_s", "flops_per_s", "mfu", "memory_bytes")


class Pace:
    """Tokens and seconds since they were last told, and how long the rest will take at the pace of the run so far."""

    def __init__(self, run: RunInfo) -> None:
        self.run = run
        self._steps, self._tokens, self._seconds = 0, 0.0, 0.0
        self._first_s: float | None = None
        self._later_steps, self._later_s = 0, 0.0

    def add(self, record: Record) -> None:
        """One more step."""
        step_s = record.get("step_s") or 0.0
        self._steps, self._seconds = self._steps + 1, self._seconds + step_s
        self._tokens += (record.get("tokens_per_s") or 0.0) * step_s
        if self._first_s is None:
            self._first_s = step_s
        else:
            self._later_steps, self._later_s = self._later_steps + 1, self._later_s + step_s

    def said(self) -> list[str]:
        """``12.30 k tokens/s``, and ``MFU 41.2%`` or FLOP/s; a new interval begins."""
        steps, tokens, seconds = self._steps, self._tokens, self._seconds
        self._steps, self._tokens, self._seconds = 0, 0.0, 0.0
        if not seconds:
            return []
        flops_per_s = self.run.flops_per_step * steps / seconds
        peak = self.run.peak_flops_per_s
        share = f"{si(round(flops_per_s))}FLOP/s" if peak is None else f"MFU {flops_per_s / peak:.1%}"
        return [f"{si(round(tokens / seconds))} tokens/s", share]

    def left_s(self, step: int) -> float:
        """Seconds for the steps behind ``step``. The first one, which compiles and allocates, counts as long as it is alone."""
        left = self.run.steps - step
        return left * self._later_s / self._later_steps if self._later_steps else left * (self._first_s or 0.0)


def step_words(record: Record) -> list[str]:
    """Loss, learning rate, gradient norm and what else a step learned, without its pace."""
    found = [f"{title} {_number(value)}" for name, title in _NAMED.items() if (value := record.get(name)) is not None]
    others = (name for name in record if name not in _NAMED and name not in _MEASURED)
    return found + [
        f"{name.replace('_', ' ')} {_number(value)}" for name in others if (value := record[name]) is not None
    ]


def memory_words(record: Record) -> list[str]:
    """``3.210 GiB``, where it is known."""
    memory = record.get("memory_bytes")
    return [gib(int(memory))] if memory else []


def duration(seconds: float) -> str:
    """``0:12``, ``1:02:03``, ``2 d 3 h``."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _number(value: float | int) -> str:
    return f"{value:.4f}" if 0.01 <= abs(value) < 1e4 or value == 0 else f"{value:.2e}"


class Lines(Quiet):
    """A line every ``log_every`` steps, and of the first and last one; samples, and where checkpoints lie."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._pace: Pace | None = None

    def on_start(self, run: RunInfo) -> None:
        self._pace = Pace(run)
        self._say(start_line(run))
        for note in run.notes:
            self._say(f"note: {note}")

    def on_step(self, record: Record) -> None:
        assert self._pace is not None, "on_start comes first"
        self._pace.add(record)
        step = int(record["step"] or 0)
        due = step % self._pace.run.log_every == 0 or step in (self._pace.run.first_step + 1, self._pace.run.steps)
        if due or "eval_loss" in record:
            left_s = self._pace.left_s(step)
            words = [*step_words(record), *self._pace.said(), *memory_words(record)]
            if left_s:
                words.append(f"{duration(left_s)} left")
            width = len(str(self._pace.run.steps))
            self._say("  ".join([f"step {step:>{width}}/{self._pace.run.steps}", *words]))

    def on_checkpoint(self, step: int, path: Path) -> None:
        self._say(f"checkpoint of step {step}: {path}")

    def on_sample(self, sample: Sample) -> None:
        self._say(sample_line(sample))

    def on_stop(self, reason: str) -> None:
        if reason:
            self._say(f"stopped: {reason}")


def start_line(run: RunInfo) -> str:
    """What begins: size, ranks, tokens."""
    begins = f"from step {run.first_step} " if run.first_step else ""
    ranks = "" if run.ranks == 1 else f", {run.ranks} ranks"
    return (
        f"{run.name}: {run.parameters:,} parameters{ranks}, {begins}to step {run.steps}, {run.tokens_per_step:,} tokens and "
        f"{si(run.flops_per_step)}FLOP a step"
    )


def sample_line(sample: Sample) -> str:
    """``sample of step 100, greedy: …`` in one line; what is no sign, as a terminal's commands, is shown as one."""
    text = (sample.prompt + sample.text).replace("\n", "⏎")
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return f"sample of step {sample.step}, {sample.kind}: {shown}"
