"""Devices that models run on: peaks, memory, links and power, from the shipped catalogue or a file of one's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from archc.errors import ArchcError, Problem, SpecError
from archc.spec.marks import problem_at
from archc.spec.near import nearest
from archc.spec.nodes import Node
from archc.spec.reader import read_file
from archc.spec.scalars import shortened
from archc.units import DTYPE_BITS, parse_bytes, parse_count

CATALOGUE = Path(__file__).with_name("hardware.yaml")
"""The shipped catalogue, with its sources."""

PEAK_DTYPES = (*DTYPE_BITS, "tfloat32")
"""What a peak may be stated for."""


def _read_by(parse: Callable[[str], int]) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(str(value)))


Bytes = Annotated[int, Field(ge=1), _read_by(parse_bytes)]
Count = Annotated[int, Field(ge=1), _read_by(parse_count)]


class Device(BaseModel):
    """One device. Rates are those of its vendor, dense and at the stated clock: no program reaches them all at once.

    ``peak_flops_per_s`` by the dtype of what is multiplied, multiply-add = 2. ``memory_bytes`` is what a program can have,
    ``bandwidth_bytes_per_s`` its memory's. ``link_bytes_per_s`` goes out of one device, in one direction, to any of the
    ``link_devices`` that are joined; ``network_bytes_per_s`` to those beyond. ``power_w`` is None where no vendor states it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_by_name=False)

    name: str = Field(alias="(name)")
    title: str
    aliases: list[str] = []
    label: str = ""
    peak_flops_per_s: dict[str, Count]
    memory_bytes: Bytes = Field(alias="memory")
    bandwidth_bytes_per_s: Bytes = Field(alias="bandwidth")
    link_bytes_per_s: Bytes = Field(alias="link")
    link_name: str = ""
    link_devices: int = Field(default=1, ge=1, le=1 << 20)
    network_bytes_per_s: Bytes = Field(alias="network")
    power_w: int | None = Field(default=None, ge=1, le=10**6)
    source: str
    url: str = ""
    notes: str = ""

    def peak(self, dtype: str) -> tuple[int, str]:
        """(FLOP/s, the dtype that they are of) for a model of ``dtype``.

        Narrow weights that the device has no products for are widened to 16 bits first. Without 16-bit products it is float32.
        """
        for name in (dtype, *(("bfloat16", "float16") if DTYPE_BITS[dtype] <= 16 else ()), "float32"):
            if name in self.peak_flops_per_s:
                return self.peak_flops_per_s[name], name
        raise ArchcError(f"{self.name}: no peak is stated for {dtype} (there is {', '.join(self.peak_flops_per_s)})")

    def to_json(self) -> dict[str, Any]:
        """Plain data, numbers as integers."""
        return self.model_dump()


def devices(file: str | PathLike[str] | None = None) -> dict[str, Device]:
    """name -> device: those of a file, or the shipped ones.

    Raises:
        SpecError: every problem of the file, with its line.
    """
    return dict(_shipped()) if file is None else _read(fspath(file))


@cache
def _shipped() -> dict[str, Device]:
    return _read(str(CATALOGUE))


def find_device(name: str, file: str | PathLike[str] | None = None) -> Device:
    """The device of a name or an alias, in any case and spacing (``H100``, ``h100 sxm``, ``NVIDIA H100``).

    A ``file`` is searched first, then the shipped catalogue.

    Raises:
        ArchcError: there is none; the message has the nearest name.
        SpecError: the file has problems.
    """
    own = {} if file is None else devices(file)
    wanted, by_name = _folded(name), {**_by_name(_shipped()), **_by_name(own)}
    if wanted in by_name:
        return by_name[wanted]
    near = nearest(wanted, by_name) if wanted else ""
    hint = f"Did you mean {by_name[near].name}?" if near else f"Known are {', '.join({**own, **_shipped()})}"
    raise ArchcError(f"device {shortened(repr(name))} is unknown. {hint}")


def _by_name(known: dict[str, Device]) -> dict[str, Device]:
    """Devices by their folded aliases and names; a name counts more than an alias."""
    aliases = {_folded(alias): device for device in known.values() for alias in device.aliases}
    return {**aliases, **{_folded(name): device for name, device in known.items()}}


def _folded(name: str) -> str:
    return re.sub(r"^(?:nvidia|amd|google|geforce)", "", re.sub(r"[^a-z0-9]", "", name[:100].lower()))


def _read(file: str) -> dict[str, Device]:
    root, problems = read_file(file, file, "file of devices")
    found: dict[str, Device] = {}
    taken: dict[str, str] = {}
    for name, node in root.mapping.items():
        if not node.mapping:
            problems.append(problem_at(root.key_mark(name), (name,), "should be a mapping of a device's figures"))
            continue
        written = _written(node)
        problems += _odd_peaks(root, name)
        for alias in (name, *_texts(written.get("aliases"))):
            if taken.setdefault(_folded(alias), name) != name:
                text = f"{alias!r} names {taken[_folded(alias)]}, too"
                problems.append(problem_at(root.key_mark(name), (name,), text))
        try:
            found[name] = Device.model_validate({"(name)": name, **written})
        except ValidationError as error:
            problems += (_problem(root, name, one) for one in error.errors(include_url=False))
    if not root.mapping:
        problems.append(Problem(message="there is no device in it", file=file))
    if problems:
        raise SpecError(sorted(problems, key=lambda problem: problem.line), file)
    return found


def _written(node: Node) -> dict[str, Any]:
    """The members of a device; numbers stay as they were written, for ``989.4T`` and 19.5e12 are read alike, and exactly."""

    def value(inner: Node) -> Any:
        return inner.text if isinstance(inner.value, float) else inner.plain()

    return {
        key: {name: value(peak) for name, peak in inner.mapping.items()} if inner.mapping else value(inner)
        for key, inner in node.mapping.items()
    }


def _texts(value: Any) -> list[str]:
    """The texts among what should be a list of them."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str)]


def _problem(root: Node, name: str, error: Any) -> Problem:
    path = (name, *(step for step in error["loc"] if isinstance(step, str)))
    node = root.at(path)
    if error["type"] == "missing":
        return problem_at(root.key_mark(name), path, "is missing")
    if error["type"] == "extra_forbidden":
        keys = [field.alias or key for key, field in Device.model_fields.items() if key != "name"]
        near = nearest(path[-1], keys, cutoff=0.4)
        suggestion = f"Did you mean {near}?" if near else f"Keys are {', '.join(keys)}"
        parent = root.at(path[:-1])
        mark = root.key_mark(name) if parent is None else parent.key_mark(path[-1])
        return problem_at(mark, path, "unknown key", suggestion)
    text = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    text = text.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    found = (
        "" if node is None or node.mapping or "'" in text else f" (found {shortened(node.text or repr(node.plain()))})"
    )
    return problem_at(root.key_mark(name) if node is None else node.mark, path, f"{text}{found}")


def _odd_peaks(root: Node, name: str) -> Iterator[Problem]:
    peaks = root.at((name, "peak_flops_per_s"))
    for dtype, node in () if peaks is None else peaks.mapping.items():
        if dtype not in PEAK_DTYPES:
            near = nearest(dtype, PEAK_DTYPES)
            hint = f"Did you mean {near}?" if near else f"Known are {', '.join(PEAK_DTYPES)}"
            yield problem_at(node.mark, (name, "peak_flops_per_s", dtype), "is no dtype", hint)
