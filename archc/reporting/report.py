"""A report of one or several specs as one HTML file that needs nothing else: the whole of ``archc report``."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from archc.errors import ArchcError, Problem, SpecError
from archc.estimation.estimate import DEFAULT_LENGTH_TOKENS
from archc.planning.options import below_one, known_device, known_dtype
from archc.planning.parallel import Parallel
from archc.planning.serving.estimate import estimate_serving
from archc.reporting.model import Model, default_length, model_of
from archc.reporting.page import Settings, page
from archc.reporting.ranks import PP, TP
from archc.spec.load import load_spec
from archc.spec.near import listed
from archc.spec.schema import Spec
from archc.units import SPEC_DTYPES, dtype_name

Source = Spec | str | PathLike[str]

DEFAULT_DEVICE = "h200"
"""Where a page's models stand unless somebody asks for another device."""

MIB = 1 << 20

MOST_SPECS = 16
"""More columns nobody reads, and the page would grow without an end."""


def report(
    specs: Source | Sequence[Source],
    path: str | PathLike[str],
    *,
    batch_size: int = 1,
    max_model_len: int | None = None,
    source_len: int | None = None,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
    block_size: int | None = None,
    gpu: str | None = DEFAULT_DEVICE,
    parallel: Parallel | None = None,
    overrides: Sequence[str] = (),
) -> Path:
    """Write the page at ``path``; a file that is there is replaced once the new one is whole.

    The options are where the page's controls stand at first, as those of ``archc.estimate`` and ``archc.estimate_serving``;
    ``max_model_len``, in tokens, is by default the fewest positions that a spec states, ``gpu`` may be None. ``overrides`` are
    ``path=value`` on every spec given by name or file.

    Raises:
        ArchcError: a spec has problems, options are wrong (all of them are said), or the place can't be written.
    """
    sources = [specs] if isinstance(specs, str | PathLike | Spec) else list(specs)
    out = Path(path)
    problems = [
        *_place_problems(sources, out),
        *_number_problems(batch_size, max_model_len, source_len, block_size),
        *_split_problems(parallel),
    ]
    for name, value in (("dtype", dtype), ("kv_cache_dtype", kv_cache_dtype)):
        known_dtype(name, value, problems, SPEC_DTYPES)
    device = known_device(gpu, problems)
    if problems:
        raise SpecError([Problem(message=message, code="report") for message in problems])
    models = [_model(source, overrides) for source in sources]
    settings = Settings(
        batch_size=batch_size,
        max_model_len=max_model_len or default_length(models) or DEFAULT_LENGTH_TOKENS,
        source_len=source_len,
        dtype=None if dtype is None else dtype_name(dtype),
        kv_cache_dtype=None if kv_cache_dtype is None else dtype_name(kv_cache_dtype),
        block_size=block_size,
        gpu=device.name if device else "",
        tp=parallel.tp if parallel else 1,
        pp=parallel.pp if parallel else 1,
        ep=parallel.ep if parallel else 1,
        workspace_bytes=0,
    )
    _write(out, page(models, replace(settings, workspace_bytes=_workspace_bytes(models, settings))))
    return out


def _workspace_bytes(models: Sequence[Model], settings: Settings) -> int:
    """What ``archc estimate --serve`` counts for one rank at these settings, of the model that needs most, in whole MiB."""
    most = 0
    for model in models:
        source_len = settings.source_len if model.graph.reads_encoder else None
        served = estimate_serving(
            model.graph,
            batch_size=settings.batch_size,
            max_model_len=settings.max_model_len,
            source_len=source_len,
            dtype=settings.dtype,
        )
        most = max(most, *(stage.workspace_bytes for stage in served.stages))
    return max(-(-most // MIB), 1) * MIB


def _place_problems(sources: Sequence[Source], out: Path) -> list[str]:
    found: list[str] = []
    if not sources:
        found.append("there is no spec to report on")
    if len(sources) > MOST_SPECS:
        found.append(f"a report compares at most {MOST_SPECS} specs (found {len(sources)})")
    if out.suffix.lower() not in (".html", ".htm"):
        found.append(f"{out}: a report is written as .html")
    if out.is_dir():
        found.append(f"{out} is a folder; a report is a file, as in {out / 'report.html'}")
    elif not out.absolute().parent.is_dir():
        found.append(f"{out.parent} is no folder, so {out.name} can't be written there")
    return found


def _number_problems(batch_size: int, length: int | None, source: int | None, block: int | None) -> list[str]:
    return below_one({"batch_size": batch_size, "max_model_len": length, "source_len": source, "block_size": block})


def _split_problems(parallel: Parallel | None) -> list[str]:
    """Splits that the controls don't offer; what a model can't have, the page says."""
    if parallel is None:
        return []
    offered = {"tp": (parallel.tp, TP), "pp": (parallel.pp, PP), "ep": (parallel.ep, (1, parallel.tp))}
    found = [
        f"{name} should be {listed([str(choice) for choice in dict.fromkeys(choices)], 'or')} in a report (found {size})"
        for name, (size, choices) in offered.items()
        if size not in choices
    ]
    found += [f"{name} has no control in a report" for name in ("dp", "cp") if getattr(parallel, name) > 1]
    return found


def _model(source: Source, overrides: Sequence[str]) -> Model:
    if isinstance(source, Spec):
        return model_of(source, "A spec made in Python.", shlex.quote(source.name))
    spec = load_spec(Path(source), overrides)
    # Only the file's name: a page is sent to others, whom the folders of its writer don't concern.
    name = Path(source).name
    origin = f"Spec: {name}{'' if os.path.exists(source) else ', shipped with archc'}"
    if overrides:
        origin += f", with {', '.join(overrides)}"
    changes = (word for override in overrides for word in ("--set", override))
    return model_of(spec, origin, shlex.join([name, *changes]))


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise ArchcError(f"{path} can't be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
