"""archc: a compiler for model architectures. One YAML spec becomes exact costs, a PyTorch model and a fused ONNX file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from archc._version import __version__

if TYPE_CHECKING:
    from archc.estimation.complexity import complexity
    from archc.estimation.estimate import estimate
    from archc.expansion import expand
    from archc.planning.comparison.compare import compare
    from archc.planning.comparison.diff import diff
    from archc.planning.parallel import Parallel
    from archc.planning.plan import plan
    from archc.planning.search.fit import fit
    from archc.planning.search.sweep import sweep
    from archc.planning.serving.estimate import estimate_serving
    from archc.planning.timing.estimate import estimate_time
    from archc.planning.training.estimate import estimate_training
    from archc.plotting.plot import plot
    from archc.reporting.report import report
    from archc.runtime import load
    from archc.spec.load import load_spec, loads_spec
    from archc.torch_backend.build import build, cast, init, new_cache
    from archc.torch_backend.generate import generate
    from archc.torch_backend.recompute import recompute
    from archc.torch_backend.step import Step, pad_right
    from archc.torch_backend.weights import load_weights, save_weights
    from archc.training.train import train

__all__ = [
    "Parallel",
    "Step",
    "__version__",
    "build",
    "cast",
    "compare",
    "complexity",
    "diff",
    "estimate",
    "estimate_serving",
    "estimate_time",
    "estimate_training",
    "expand",
    "fit",
    "generate",
    "init",
    "load",
    "load_spec",
    "load_weights",
    "loads_spec",
    "new_cache",
    "pad_right",
    "plan",
    "plot",
    "recompute",
    "report",
    "save_weights",
    "sweep",
    "train",
]

_HOMES = {
    "build": "archc.torch_backend.build",
    "cast": "archc.torch_backend.build",
    "compare": "archc.planning.comparison.compare",
    "complexity": "archc.estimation.complexity",
    "diff": "archc.planning.comparison.diff",
    "estimate": "archc.estimation.estimate",
    "estimate_serving": "archc.planning.serving.estimate",
    "estimate_time": "archc.planning.timing.estimate",
    "estimate_training": "archc.planning.training.estimate",
    "expand": "archc.expansion",
    "fit": "archc.planning.search.fit",
    "generate": "archc.torch_backend.generate",
    "init": "archc.torch_backend.build",
    "load": "archc.runtime",
    "load_spec": "archc.spec.load",
    "load_weights": "archc.torch_backend.weights",
    "loads_spec": "archc.spec.load",
    "new_cache": "archc.torch_backend.build",
    "pad_right": "archc.torch_backend.step",
    "Parallel": "archc.planning.parallel",
    "plan": "archc.planning.plan",
    "plot": "archc.plotting.plot",
    "recompute": "archc.torch_backend.recompute",
    "report": "archc.reporting.report",
    "save_weights": "archc.torch_backend.weights",
    "Step": "archc.torch_backend.step",
    "sweep": "archc.planning.search.sweep",
    "train": "archc.training.train",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used, so that ``import archc`` costs nothing and never loads torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'archc' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
