"""Prompts from the command line through a model that generates, and what it writes, as it comes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Any

import click

from archc.cli.options import print_json, stdout_is_terminal
from archc.cli.progress import progress_bar
from archc.cli.writing_options import ids_of
from archc.errors import ArchcError

Output = Enum("Output", ["TEXT", "IDS", "JSON"])
Prompt = str | list[int]

_KEPT_CONTROLS = "\n\t"
_VISIBLE = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in _KEPT_CONTROLS}
"""Characters that would move a terminal's cursor or change its colours, shown as unreadable ones."""


def read_prompts(texts: Sequence[str], ids: Sequence[str], files: Sequence[str]) -> list[Prompt]:
    """The prompts: texts, then ids, then files.

    Raises:
        ArchcError: there is none, or one can't be read.
    """
    prompts: list[Prompt] = [*texts, *(_numbers(one) for one in ids), *(_content(file) for file in files)]
    if not prompts:
        raise ArchcError("there is no prompt; give --prompt TEXT, --prompt-ids 1,2,3 or --prompt-file FILE")
    return prompts


def _numbers(text: str) -> list[int]:
    try:
        return ids_of(text)
    except ValueError:
        raise ArchcError(f"--prompt-ids should be ids as in 1,2,3 (found {text!r})") from None


def _content(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArchcError(f"{file} can't be read: {error}") from error


def write(
    generate: Callable[..., Any],
    prompts: Sequence[Prompt],
    options: Mapping[str, Any],
    *,
    batch_size: int | None,
    output: Output,
    told: Mapping[str, Any],
) -> None:
    """Generate for all prompts, ``batch_size`` at once, and print texts or ids on stdout, rates on stderr.

    ``generate`` is a model's, ``options`` its arguments; ``told`` are the entries of the JSON that say what ran where, and
    all but its name end the line of rates.
    """
    rows: list[dict[str, Any]] = []
    timings: list[Any] = []
    size = batch_size or len(prompts)
    for start in range(0, len(prompts), size):
        batch = prompts[start : start + size]
        # What a prompt gives depends on its number, not on who shares its batch.
        seeds = [(options["seed"], start + row) for row in range(len(batch))]
        # One prompt is printed while it comes; the rows of a batch would be mixed.
        streams = len(prompts) == 1 and output is not Output.JSON
        made = _generate(generate, batch, {**options, "seed": seeds}, output if streams else None)
        timings.append(made.timings)
        for number, ids in enumerate(made.ids):
            text = None if made.texts is None else made.texts[number]
            rows.append({"prompt": made.prompts[number], "ids": ids, "text": text, "finished": made.finished[number]})
            if not streams and output is not Output.JSON:
                _print_row(len(rows) - 1, rows[-1], output)
    total = _summed(timings)
    length = options.get("max_model_len")
    if output is Output.JSON:
        stated = {} if length is None else {"max_model_len": length}
        print_json({**told, **stated, "rows": rows, "timings": total})
    else:
        stated = [] if length is None else [f"at most {length:,} tokens a sequence"]
        _print_timings(total, ", ".join([*(str(value) for key, value in told.items() if key != "name"), *stated]))


def _generate(
    generate: Callable[..., Any], prompts: Sequence[Prompt], options: Mapping[str, Any], streamed: Output | None
) -> Any:
    with ExitStack() as stack:
        move = stack.enter_context(progress_bar("prompt"))
        printer = _Printer(streamed)

        def on_token(token: Any) -> None:
            # The bar is gone before the first piece stands in its place.
            stack.close()
            printer.take(token)

        def progress(done: int, total: int) -> None:
            if move is not None:
                move("tokens", done, total)

        return generate(prompts, on_token=on_token, progress=progress, **options)


class _Printer:
    """The tokens of one row, printed as they come."""

    def __init__(self, output: Output | None) -> None:
        self._output, self._first = output, True

    def take(self, token: Any) -> None:
        if self._output is None:
            return
        if self._output is Output.IDS:
            click.echo(f"{'' if self._first else ','}{token.id}", nl=False)
        else:
            click.echo(_shown(token.text), nl=False)
        self._first = False
        if token.is_last:
            click.echo()


def _print_row(number: int, row: Mapping[str, Any], output: Output) -> None:
    click.secho(f"prompt {number}:", bold=True)
    click.echo(",".join(map(str, row["ids"])) if output is Output.IDS else _shown(row["text"]))


def _shown(text: str) -> str:
    return text.translate(_VISIBLE) if stdout_is_terminal() else text


def _summed(timings: Sequence[Any]) -> dict[str, float]:
    names = ("prompt_tokens", "prefill_seconds", "decode_tokens", "decode_seconds")
    total: dict[str, float] = {name: sum(getattr(one, name) for one in timings) for name in names}
    for part, tokens in (("prefill", "prompt_tokens"), ("decode", "decode_tokens")):
        total[f"{part}_tokens_per_second"] = total[tokens] / max(total[f"{part}_seconds"], 1e-9)
    return total


def _print_timings(timings: Mapping[str, float], place: str) -> None:
    parts = [f"prompt {timings['prompt_tokens']:,} tokens, {timings['prefill_tokens_per_second']:,.1f} tok/s"]
    if timings["decode_tokens"]:
        parts.append(f"decode {timings['decode_tokens']:,} tokens, {timings['decode_tokens_per_second']:,.1f} tok/s")
    click.echo(f"archc: {'; '.join(parts)}; {place}", err=True)
