"""Mamba-2 with a limit on its steps: transformers' uncached forward is the judge, its decode forgets the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import archc  # noqa: E402
from archc.checkpoint.convert import to_archc  # noqa: E402
from archc.checkpoint.importing import import_config  # noqa: E402
from tests.parity.mamba import GRANITEMOEHYBRID, MAMBA2  # noqa: E402
from tests.parity.oracle import Oracle  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("family", [MAMBA2, GRANITEMOEHYBRID], ids=lambda family: family.name)
@pytest.mark.parametrize("limit", [(0.05, 0.3), (0.2, float("inf"))], ids=str)
def test_prefill_and_decode_have_the_same_limit(family, limit, tmp_path):
    oracle = Oracle(replace(family, config={**family.config, "time_step_limit": limit}))
    pieces = (16, 8, *[1] * 8)
    theirs = oracle.in_pieces(pieces)
    assert float((theirs[:, :16] - oracle.logits[:, :16]).abs().max()) < family.tolerance
    assert float((theirs - oracle.logits).abs().max()) > 100 * family.tolerance, (
        "transformers' decode is as its prefill"
    )
    oracle.model.save_pretrained(tmp_path / "theirs")
    imported = import_config(tmp_path / "theirs")
    to_archc(tmp_path / "theirs", tmp_path / "ours", imported)
    model = archc.load_weights(archc.build(imported.spec, device="cpu", dtype="float32"), tmp_path / "ours").eval()
    cache, past, ours = archc.new_cache(model, batch=2, max_model_len=32), 0, []
    with torch.no_grad():
        assert float((model(oracle.ids) - oracle.logits).abs().max()) < family.tolerance
        for length in pieces:
            ours.append(model(oracle.ids[:, past : past + length], archc.Step.at(past, length), cache))
            past += length
    assert float((torch.cat(ours, 1) - oracle.logits).abs().max()) < family.tolerance
