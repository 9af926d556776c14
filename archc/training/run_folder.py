"""The folder of a training run: what it trains, how, and where its parts lie; it is one run's from its first step to its last."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import yaml

from archc._version import __version__
from archc.checkpoint.reading import read_json
from archc.errors import ArchcError
from archc.graph.graph import Graph
from archc.graph.lockfile import to_lock

FORMAT = 1
RUN, SPEC, TOKENIZER = "run.json", "spec.yaml", "tokenizer.json"
SOURCE_TOKENIZER = "source_tokenizer.json"
"""Where an encoder has a tokenizer of its own."""
MAY_CHANGE = (
    "steps",
    "micro_batch_size",
    "parallel",
    "zero",
    "pp_schedule",
    "recompute",
    "compile",
    "loss_chunk",
    "device",
    "checkpoint_every",
    "keep",
    "log_every",
    "eval_every",
    "eval_batches",
    "sample_every",
    "spike_factor",
)
"""Options that a resumed run may have otherwise: how long, where, in which pieces, and what is said. All others are the run."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """``settings`` is what ``run.json`` holds; its ``options`` are as ``TrainOptions.to_json`` gives them."""

    path: Path
    settings: Mapping[str, Any]

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        spec_text: str,
        graph: Graph,
        options: Mapping[str, Any],
        data: Mapping[str, Any] | None = None,
        tokenizer: str | Path | None = None,
        tokenizer_text: str | None = None,
        source_tokenizer_text: str | None = None,
        weights: str | Path | None = None,
    ) -> RunFolder:
        """A new run, written beside its place and put there as a whole. ``data`` is plain data that tells its data from others.
        ``tokenizer`` is a ``tokenizer.json``, ``tokenizer_text`` what stands in one, ``source_tokenizer_text`` in
        an encoder's own; ``weights`` is where it begins from.

        Raises:
            ArchcError: the folder is a run already, or holds something else, or can't be written.
        """
        place = Path(os.path.abspath(path))
        cls.check_new(place)
        settings = {
            "format": FORMAT,
            "name": graph.name,
            "spec_sha256": spec_hash(graph),
            "options": dict(options),
            "data": dict(data or {}),
            **({} if weights is None else {"weights": os.path.abspath(weights)}),
            **_versions(),
        }
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            stage = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        except OSError as error:
            raise _unwritable(place, error) from error
        try:
            os.chmod(stage, 0o755)
            (stage / SPEC).write_text(spec_text, "utf-8")
            if tokenizer is not None:
                shutil.copyfile(tokenizer, stage / TOKENIZER)
            for name, text in ((TOKENIZER, tokenizer_text), (SOURCE_TOKENIZER, source_tokenizer_text)):
                if text is not None:
                    (stage / name).write_text(text, "utf-8")
            (stage / RUN).write_text(_text(settings), "utf-8")
            os.replace(stage, place)
        except OSError as error:
            raise _unwritable(place, error) from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        return cls(place, settings)

    @staticmethod
    def check_new(path: str | Path) -> None:
        """Raises ArchcError where a new run can't be put."""
        place = Path(path)
        if (place / RUN).is_file():
            raise ArchcError(f"{path} is a run already; --resume goes on with it, or name another folder")
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise ArchcError(f"{path} is there already and no run; name another folder")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A run that is there.

        Raises:
            ArchcError: it is none.
        """
        place = Path(os.path.abspath(path))
        if not (place / RUN).is_file():
            raise ArchcError(f"{path} is no run: it has no {RUN}, which archc train writes")
        settings = read_json(place / RUN)
        if settings.get("format") != FORMAT:
            raise ArchcError(f"{place / RUN}: format should be {FORMAT} (found {settings.get('format')!r})")
        wrong = [name for name in ("options", "data") if not isinstance(settings.get(name), dict)]
        if wrong:
            raise ArchcError(f"{place / RUN} is damaged: {', '.join(wrong)} should be a mapping")
        return cls(place, settings)

    def resume(
        self,
        *,
        spec_text: str,
        graph: Graph,
        options: Mapping[str, Any],
        data: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """The run with options that may have changed (``MAY_CHANGE``; ``steps`` may grow), not yet written: ``write`` does that.

        Raises:
            ArchcError: the spec, the data or other options differ; every difference is listed.
        """
        problems = [*self._of_spec(spec_text, graph), *self._of_options(options), *self._of_data(data or {})]
        if problems:
            lines = "\n  ".join(problems)
            raise ArchcError(
                f"{self.path} is another run, which this one would spoil; name another folder, or change it back:\n  {lines}"
            )
        return RunFolder(self.path, {**self.settings, "options": dict(options), **_versions()})

    def write(self) -> None:
        """Put the settings into the folder, whole or not at all."""
        partial = self.path / f".{RUN}.partial"
        try:
            partial.write_text(_text(self.settings), "utf-8")
            os.replace(partial, self.path / RUN)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        finally:
            partial.unlink(missing_ok=True)

    @property
    def options(self) -> dict[str, Any]:
        """As ``TrainOptions.from_json`` takes them."""
        return dict(self.settings["options"])

    @property
    def spec(self) -> Path:
        return self.path / SPEC

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer's file, if the run has one."""
        file = self.path / TOKENIZER
        return file if file.is_file() else None

    @property
    def data(self) -> Path:
        """Token shards."""
        return self.path / "data"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The trained model, as archc build writes one."""
        return self.path / "model"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        return self.path / "samples.jsonl"

    def _of_spec(self, spec_text: str, graph: Graph) -> Iterator[str]:
        if self.settings.get("spec_sha256") == spec_hash(graph):
            return
        ours, theirs = (_leaves(yaml.safe_load(text)) for text in (self.spec.read_text("utf-8"), spec_text))
        differing = list(_differences(ours, theirs, "spec: "))
        yield from differing
        if not differing:
            yield (
                f"spec: the same text means another model: archc {self.settings.get('archc')} then, {__version__} now, or other "
                "plugins"
            )

    def _of_options(self, options: Mapping[str, Any]) -> Iterator[str]:
        ours, theirs = ({**given} for given in (self.options, options))
        before, now = ours.get("steps"), theirs.get("steps")
        if isinstance(before, int) and isinstance(now, int) and now < before:
            yield f"steps: {before} in the run, {now} now; they may grow"
        for name in MAY_CHANGE:
            ours.pop(name, None)
            theirs.pop(name, None)
        yield from _differences(_leaves(json.loads(json.dumps(ours))), _leaves(json.loads(json.dumps(theirs))), "")

    def _of_data(self, data: Mapping[str, Any]) -> Iterator[str]:
        yield from _differences(_leaves(self.settings["data"]), _leaves(json.loads(json.dumps(dict(data)))), "data: ")


def spec_hash(graph: Graph) -> str:
    """What tells a graph from any other: its lockfile's, without the version of archc that wrote it."""

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: stripped(one) for key, one in cast("dict[str, Any]", value).items() if key != "archc"}
        return [stripped(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value

    return hashlib.sha256(json.dumps(stripped(to_lock(graph)), sort_keys=True).encode()).hexdigest()


def _versions() -> dict[str, str]:
    return {"archc": __version__, "torch": torch.__version__}


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=1, ensure_ascii=False) + "\n"


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Dotted path -> value."""
    if isinstance(value, dict) and value:
        items = [(str(key), one) for key, one in cast("dict[Any, Any]", value).items()]
    elif isinstance(value, list) and value:
        items = [(str(number), one) for number, one in enumerate(cast("list[Any]", value))]
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for key, one in items:
        found |= _leaves(one, f"{path}.{key}" if path else key)
    return found


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> Iterator[str]:
    for path in dict.fromkeys([*ours, *theirs]):
        if ours.get(path) != theirs.get(path) or (path in ours) != (path in theirs):
            before, now = (str(one[path]) if path in one else "nothing" for one in (ours, theirs))
            yield f"{what}{path}: {before} in the run, {now} now"


def _unwritable(place: Path, error: OSError) -> ArchcError:
    return ArchcError(f"{place} can't be written: {error.strerror or error}")
