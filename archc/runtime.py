"""Exported folders at work. What runs them is an entry point, because the core knows neither numpy nor onnxruntime."""

from __future__ import annotations

from os import PathLike
from typing import Any

from archc import registry


def load(folder: str | PathLike[str], *, provider: str | None = None, threads: int = 0) -> Any:
    """The model in a folder that ``archc export`` wrote: ``load(folder).generate(["a prompt"])``.

    ``provider`` is ``cuda`` or ``cpu``: by default CUDA where the file was made for it and a device is there. 0 ``threads``
    lets onnxruntime choose.

    Raises:
        ArchcError: the folder is no export, is not whole, or can't run here.
        PluginError: no runtime is installed.
    """
    return registry.load("runtime", "load")(folder, provider=provider, threads=threads)
