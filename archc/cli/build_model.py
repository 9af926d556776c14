"""Builds a model for the command line and holds it against the estimate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

from archc.cli.files import require_disk, require_memory, staged
from archc.cli.progress import busy
from archc.cli.table import print_heading, print_pairs, ranges
from archc.errors import ArchcError, CheckFailedError
from archc.estimation.estimate import Estimate, estimate
from archc.expansion import expand
from archc.graph.lockfile import to_text
from archc.spec.resolved import resolved
from archc.torch_backend.build import build, new_cache
from archc.torch_backend.weights import save_weights
from archc.units import gib


@dataclass(slots=True)
class Built:
    """A built model's sizes beside the estimated ones, and the files that were written, path -> bytes."""

    name: str
    device: str
    dtype: str
    tree: str
    modules: int
    parameters: int
    cache_bytes: int
    found: Estimate
    files: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "device": self.device,
            "dtype": self.dtype,
            "modules": self.modules,
            "parameters": {"built": self.parameters, "estimated": self.found.parameters.total},
            "cache_bytes": {"built": self.cache_bytes, "estimated": self.found.cache.allocated_bytes},
            "max_model_len": self.found.max_model_len,
            "files": self.files,
            "tree": self.tree,
        }

    def check(self) -> None:
        """Hold the model against the estimate.

        Raises:
            CheckFailedError: they differ, so one of them is wrong.
        """
        for what, built, estimated in (
            ("parameters", self.parameters, self.found.parameters.total),
            ("bytes of cache", self.cache_bytes, self.found.cache.allocated_bytes),
        ):
            if built != estimated:
                raise CheckFailedError(f"{self.name}: {built:,} {what} are built, {estimated:,} estimated")


def build_model(
    spec: str,
    overrides: tuple[str, ...],
    *,
    output: str | None,
    device: str,
    dtype: str | None,
    max_model_len: int | None,
    seed: int,
) -> Built:
    """The model of a spec on a device; with ``output`` its weights, resolved spec and lockfile are written there."""
    merged = resolved(spec, overrides)
    graph = expand(merged.spec)
    found = estimate(graph, max_model_len=max_model_len, dtype=dtype)
    if device == "cuda" and not torch.cuda.is_available():
        raise ArchcError("torch finds no CUDA device here; choose --device cpu or meta")
    if output is not None:
        require_disk(Path(output), found.weights.bytes)
    if device == "cpu":
        require_memory(found.weights.bytes)
    with busy(f"building {graph.name}"):
        model = build(graph, device=device, dtype=found.dtype, seed=None if device == "meta" else seed)
    cache = new_cache(model, batch=1, max_model_len=found.max_model_len, device="meta")
    files: dict[str, int] = {}
    if output is not None:
        out = Path(output)
        with busy(f"writing {gib(found.weights.bytes)}"), staged(out) as stage:
            save_weights(model, stage / "model.safetensors")
            (stage / "spec.yaml").write_text(merged.to_yaml(), encoding="utf-8")
            (stage / "graph.json").write_text(to_text(graph), encoding="utf-8")
            files = {str(out / file.name): file.stat().st_size for file in sorted(stage.iterdir())}
    return Built(
        name=graph.name,
        device=device,
        dtype=found.dtype,
        tree=module_tree(model),
        modules=sum(1 for _ in model.modules()),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        cache_bytes=sum(tensor.numel() * tensor.element_size() for tensor in cache.values()),
        found=found,
        files=files,
    )


def print_built(built: Built) -> None:
    """The module tree, and the built sizes beside the estimated ones."""
    click.echo(built.tree)
    print_heading(f"{built.name}: {built.dtype} on {built.device}, {built.modules:,} modules")
    estimated = built.found.parameters.total
    estimated_bytes = built.found.cache.allocated_bytes
    cache = f"cache bytes, {built.found.max_model_len:,} tokens"
    print_pairs(
        [
            ("", "built", "estimated", ""),
            ("parameters", f"{built.parameters:,}", f"{estimated:,}", _verdict(built.parameters, estimated)),
            (cache, f"{built.cache_bytes:,}", f"{estimated_bytes:,}", _verdict(built.cache_bytes, estimated_bytes)),
        ]
    )
    for path, size_bytes in built.files.items():
        click.echo(f"  wrote {path}, {size_bytes:,} B ({gib(size_bytes)})")


def _verdict(built: int, estimated: int) -> str:
    return "equal" if built == estimated else "DIFFERENT"


def module_tree(model: nn.Module) -> str:
    """The modules and their names, one line each; numbered siblings that print alike are one entry."""
    return "\n".join([type(model).__name__, *_children(model, "  ")])


def _children(module: nn.Module, indent: str) -> list[str]:
    entries: dict[tuple[str, tuple[str, ...], str | None], list[str]] = {}
    for name, child in module.named_children():
        body = tuple(_children(child, f"{indent}  "))
        # A name that is no number is never folded: it says what the module is.
        key = (_headline(child), body, None if name.isdigit() else name)
        entries.setdefault(key, []).append(name)
    lines: list[str] = []
    for (head, body, word), names in entries.items():
        label = word or ranges([int(name) for name in names])
        lines += [f"{indent}{label}: {head}", *body]
    return lines


def _headline(module: nn.Module) -> str:
    extra = module.extra_repr().replace("\n", " ")
    return f"{type(module).__name__}({extra})" if extra else type(module).__name__
