"""The functions of ``archc`` that share their names with the modules that hold them."""

from __future__ import annotations

import subprocess
import sys

from archc.estimation.estimate import estimate

CODE = """
import archc
spec = archc.load_spec("tiny-llama")
first = archc.estimate(spec)
import archc.estimation.estimate, archc.expansion
from archc import estimate, expand
assert archc.estimate(spec).to_json() == first.to_json() == estimate(expand(spec)).to_json()
assert archc.expand(spec).name == archc.expand(spec).name == "tiny-llama"
"""


def test_the_functions_stay_whatever_is_imported():
    subprocess.run([sys.executable, "-W", "error", "-c", CODE], check=True)


def test_the_quantities_that_programs_read_are_there():
    data = estimate("deepseek-v3").to_json()
    for path in [
        "name",
        "parameters.total",
        "parameters.active",
        "parameters.embedding",
        "parameters.non_embedding",
        "parameters.untrainable",
        "parameters.mtp",
        "parameters.by_part.ffn.moe.experts",
        "weights.bytes",
        "weights.by_dtype.bfloat16",
        "cache.bytes_per_token",
        "cache.bytes_per_token_below_windows",
        "cache.recurrent_bytes_per_sequence",
        "cache.convolution_bytes_per_sequence",
        "cache.used_bytes",
        "cache.allocated_bytes",
        "cache.paged_bytes",
        "cache.by_kind",
        "cache.formula",
        "flops.prefill",
        "flops.decode",
        "flops.train_step",
        "flops.prefill_dense",
        "flops.decode_dense",
        "flops.train_step_dense",
        "flops.formula.prefill",
        "flops.formula.prefill_chunk",
        "flops.formula.decode",
        "flops.formula.train_step",
        "layers",
        "conventions.flops",
    ]:
        found = data
        for key in path.split("."):
            found = found[key]
        assert isinstance(found, int | str | list)
