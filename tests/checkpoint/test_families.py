"""Every family: the imported spec is the known one, every tensor is used, logits equal transformers', bits come back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file  # noqa: E402

import archc  # noqa: E402
from archc.checkpoint.convert import to_archc, to_hf  # noqa: E402
from archc.checkpoint.importing import import_config  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.graph.lockfile import to_text  # noqa: E402
from tests.checkpoint.conftest import BY_NAME  # noqa: E402

pytestmark = pytest.mark.torch

NAMES = tuple(BY_NAME)


@pytest.mark.parametrize("name", NAMES)
def test_the_imported_spec_is_the_known_one(saved: Callable[..., Any], name: str) -> None:
    _, folder = saved(name)
    known = expand(archc.loads_spec(BY_NAME[name].spec))
    assert to_text(import_config(folder, name=known.name).graph) == to_text(known)


@pytest.mark.parametrize("name", NAMES)
def test_converted_weights_give_the_same_logits(saved: Callable[..., Any], name: str, tmp_path: Path) -> None:
    oracle, folder = saved(name)
    imported = import_config(folder)
    to_archc(folder, tmp_path / "out", imported)
    model = archc.load_weights(archc.build(imported.spec, device="cpu", dtype="float32"), tmp_path / "out").eval()
    with torch.no_grad():
        assert float((model(oracle.ids) - oracle.logits).abs().max()) < BY_NAME[name].tolerance
        cache = archc.new_cache(model, batch=2, max_model_len=32)
        pieces = []
        for start, stop in ((0, 16), (16, 24), *((at, at + 1) for at in range(24, 32))):
            pieces.append(model(oracle.ids[:, start:stop], archc.Step.at(start, stop - start), cache))
        assert float((torch.cat(pieces, 1) - oracle.logits).abs().max()) < BY_NAME[name].tolerance


@pytest.mark.parametrize("name", NAMES)
def test_a_round_trip_keeps_every_bit(saved: Callable[..., Any], name: str, tmp_path: Path) -> None:
    _, folder = saved(name)
    to_archc(folder, tmp_path / "out", import_config(folder), shard_bytes=50_000)
    to_hf(tmp_path / "out", tmp_path / "back")
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "back"))
    assert set(before) == set(after)
    for key, tensor in before.items():
        assert tensor.dtype == after[key].dtype
        assert tensor.shape == after[key].shape
        assert tensor.tobytes() == after[key].tobytes(), key
    configs = (json.loads((place / "config.json").read_text("utf-8")) for place in (folder, tmp_path / "back"))
    assert next(configs) == next(configs)
