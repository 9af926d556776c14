"""onnxruntime-genai in an environment of its own, and folders that it runs beside archc's own files of the same weights.

Both onnxruntime packages own the same folder, and its release is pinned here, so the suite's environment can't hold it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from safetensors.torch import save_file

from archc.expansion import expand
from archc.spec.resolved import resolved
from archc.torch_backend.build import build
from archc.torch_backend.weights import weights_of
from archc_exporters.onnx.export import export
from archc_exporters.onnx.session import Conversation, load_session
from tests.genai.specs import SPECS, VOCABULARY
from tests.onnx.conftest import draw

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".genai-venv"
REQUIREMENTS = ("onnxruntime-genai==0.18.0", "onnxruntime==1.31.1", "numpy")
INSTALL_SECONDS = 300
RUN_SECONDS = 120
STEPS = 12
"""New tokens of a run."""
PROMPT = ((3, 5, 7, 9, 4, 8, 30),)
RAGGED = ((3, 5, 7, 9, 4, 8, 30), (11, 2))


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python of the environment, which is made once and kept while the requirements stay the same."""
    home, stamp = HOME, HOME / "installed.txt"
    program = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = "\n".join((*REQUIREMENTS, sys.version))
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return program
    shutil.rmtree(home, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", home], check=True, capture_output=True, timeout=INSTALL_SECONDS)
        install = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS]
        subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        pytest.skip(f"no environment with {', '.join(REQUIREMENTS)}: {reason[-1] if reason else error}")
    stamp.write_text(wanted, "utf-8")
    return program


@dataclass(frozen=True)
class Generated:
    """What a run gave: tokens (batch, prompt and new ones), and the logits before each new one, (steps, batch, vocabulary)."""

    tokens: np.ndarray
    logits: np.ndarray
    encoded: np.ndarray | None = None
    decoded: str = ""


class Runner:
    """Runs folders in a process of that environment."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python, self._folder = python, folder

    def __call__(
        self, model: Path, ids: Sequence[Sequence[int]], *, before: Sequence[Any] = (), text: str = "", **search: Any
    ) -> Generated:
        """Greedy tokens after ``ids``, rows of one length; ``before`` are chunks of a conversation that came first."""
        job = {"ids": ids, "before": before, "search": search} | ({"text": text} if text else {})
        (self._folder / "job.json").write_text(json.dumps(job), "utf-8")
        results = self._folder / "results.npz"
        script = Path(__file__).with_name("generate.py")
        command = [str(self._python), str(script), str(model), str(self._folder / "job.json"), str(results)]
        # The suite's own packages stay out of it.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, env=env)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        with np.load(results) as found:
            more = {"encoded": found["encoded"], "decoded": str(found["decoded"])} if text else {}
            return Generated(found["tokens"], found["logits"], **more)


@pytest.fixture(scope="session")
def genai(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """onnxruntime-genai's generation as a function."""
    return Runner(python, tmp_path_factory.mktemp("genai"))


@dataclass(frozen=True)
class Pair:
    """An architecture in both conventions, and what archc's own file says: (batch, STEPS) tokens, logits (STEPS, batch, V)."""

    archc: Path
    genai: Path
    end: int
    """The id that ends a text and pads, which no greedy token is."""
    tokens: np.ndarray
    logits: np.ndarray


def spec_of(name: str, folder: Path, end: int) -> Path:
    """The spec of an architecture whose texts end, and are padded, with ``end``."""
    path = folder / "spec.yaml"
    ids = f"{{kind: external, vocab_size: {VOCABULARY}, eos_token_id: {end}, pad_token_id: {end}}}"
    path.write_text(SPECS[name].format(tokenizer=ids), "utf-8")
    return path


def greedy(model: Path, prompt: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(STEPS,) tokens of archc's own runtime, and the logits (STEPS, V) before each."""
    talk = Conversation(load_session(model, threads=1), batch=1, capacity=32)
    tokens: list[int] = []
    seen = []
    logits = talk.step(np.array([prompt]))
    for _ in range(STEPS):
        seen.append(logits[0, -1].astype(np.float32))
        tokens.append(int(seen[-1].argmax()))
        logits = talk.step(np.array([tokens[-1:]]))
    return np.array(tokens), np.array(seen)


def make(name: str, folder: Path, *, dtype: str = "float32", cache: str | None = None, **options: Any) -> Pair:
    """Export an architecture twice from the same weights; ``options`` are the genai file's."""
    import torch

    described = resolved(str(spec_of(name, folder, 0)), ())
    graph = expand(described.spec)
    model = build(graph, device="cpu", seed=0)
    draw(model, getattr(torch, dtype))
    weights = folder / "weights.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in weights_of(model).items()}, weights)
    both: dict[str, Any] = {
        "provider": "cpu",
        "dtype": dtype,
        "kv_cache_dtype": cache,
        "weights": weights,
        "check": False,
    }
    export(graph, folder / "archc", **both)
    runs = [greedy(folder / "archc" / "model.onnx", row) for row in RAGGED]
    taken = {token for row in RAGGED for token in row} | {int(token) for tokens, _ in runs for token in tokens}
    end = next(token for token in range(VOCABULARY) if token not in taken)
    described = resolved(str(spec_of(name, folder, end)), ())
    export(expand(described.spec), folder / "genai", io="genai", spec=described, **both, **options)
    tokens, logits = (np.stack(part, axis) for part, axis in zip(zip(*runs, strict=True), (0, 1), strict=True))
    return Pair(folder / "archc", folder / "genai", end, tokens, logits)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    """(architecture, options) -> its two exports, made once."""

    @cache
    def get(name: str, **options: Any) -> Pair:
        return make(name, tmp_path_factory.mktemp("pair"), **options)

    return get
