"""What an exported encoder makes of prompts: masked tokens filled, classes scored, outputs described."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import click

from archc.cli.options import print_json
from archc.cli.writing import read_prompts
from archc.errors import ArchcError

_SHOWN = 5
"""Likeliest ids of a masked token, or classes, that are shown."""


def read(model: Any, texts: Sequence[str], ids: Sequence[str], files: Sequence[str], *, as_json: bool) -> None:
    """Run an encoder on each prompt by itself and say what comes out, for people or as JSON.

    Raises:
        ArchcError: there is no prompt, or one is none for this model.
    """
    prompts = read_prompts(texts, ids, files) if model.reads_ids else [_pixels(file, model) for file in files]
    if not prompts:
        raise ArchcError("there is no picture; give --prompt-file pixels.npy, numbers (channels, height, width)")
    rows: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        tokens = model.batch([prompt])[0][0].tolist() if model.reads_ids else None
        found = {name: y[0] for name, y in model.forward([prompt] if model.reads_ids else prompt).items()}
        rows.append({"ids": tokens, "outputs": {name: _described(name, y, tokens, model) for name, y in found.items()}})
        if not as_json:
            _print(number, rows[-1], many=len(prompts) > 1)
    if as_json:
        print_json({"name": model.contract.name, "provider": model.provider, "rows": rows})


def _pixels(file: str, model: Any) -> Any:
    import numpy as np

    try:
        return np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ArchcError(
            f"{file} can't be read as {model.contract.inputs[0].name}, an array in an .npy: {error}"
        ) from error


def _described(name: str, y: Any, tokens: list[int] | None, model: Any) -> dict[str, Any]:
    """Shape, mean and spread of an output for one prompt; of logits what they say."""
    values = y.astype("float32")
    told: dict[str, Any] = {
        "shape": list(values.shape),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "first": [float(number) for number in values.reshape(-1)[:4]],
    }
    if name == "logits" and values.ndim == 1:
        told["classes"] = _likeliest(values)
    elif name == "logits" and tokens is not None:
        mask = None if model.text is None else model.text.mask_id()
        places = [at for at, number in enumerate(tokens) if number == mask]
        told["filled" if places else "tokens"] = [
            {"at": at, "candidates": _likeliest(values[at], model.text, _SHOWN if places else 1)}
            for at in places or range(len(tokens))
        ]
    return told


def _likeliest(scores: Any, text: Any = None, count: int = _SHOWN) -> list[dict[str, Any]]:
    """The largest scores of a row with their share in the softmax."""
    numbers = [float(score) for score in scores]
    largest = max(numbers)
    total = math.fsum(math.exp(number - largest) for number in numbers)
    order = sorted(range(len(numbers)), key=lambda at: -numbers[at])[:count]
    return [
        {"id": at, "probability": math.exp(numbers[at] - largest) / total}
        | ({} if text is None else {"text": text.decode([at])})
        for at in order
    ]


def _print(number: int, row: dict[str, Any], *, many: bool) -> None:
    if many:
        click.secho(f"prompt {number}:", bold=True)
    for name, told in row["outputs"].items():
        shape = " x ".join(str(size) for size in told["shape"])
        start = ", ".join(f"{value:.4g}" for value in told["first"])
        click.echo(f"{name} ({shape}): mean {told['mean']:.4g}, std {told['std']:.4g}, begins {start}")
        if "classes" in told:
            click.echo(f"  classes: {_shown(told['classes'])}")
        for place in told.get("filled", ()):
            click.echo(f"  token {place['at']}: {_shown(place['candidates'])}")
        if "tokens" in told:
            best = [place["candidates"][0] for place in told["tokens"]]
            click.echo(f"  likeliest: {' '.join(one.get('text') or str(one['id']) for one in best)}")


def _shown(candidates: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one.get('text') or one['id']} {one['probability']:.1%}" for one in candidates)
