"""Mamba-2 with a limit on its steps: transformers' uncached forward is the judge, its decode forgets the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import archc  # noqa: E402
from archc.checkpoint.convert import to_archc  # noqa: E402
from archc.checkpoint.importing import import_config  # noqa: E402
from tests.parity.mamba import GRANITEMOEHYBRID, MAMBA2, NEMOTRON_H  # noqa: E402
from tests.parity.oracle import Oracle  # noqa: E402

pytestmark = pytest.mark.torch


LIMITS = {
    "mamba2": (MAMBA2, {"time_step_limit": (0.05, 0.3)}),
    "mamba2, a lowest step": (MAMBA2, {"time_step_limit": (0.2, float("inf"))}),
    "granitemoehybrid": (GRANITEMOEHYBRID, {"time_step_limit": (0.05, 0.3)}),
    "nemotron_h, a lowest step": (NEMOTRON_H, {"time_step_min": 0.2, "time_step_max": 0.3}),
}


@pytest.mark.parametrize(("family", "limit"), LIMITS.values(), ids=LIMITS)
def test_prefill_and_decode_have_the_same_limit(family, limit, tmp_path):
    oracle = Oracle(replace(family, config={**family.config, **limit}))
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
