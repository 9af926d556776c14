"""A page's pieces and times are those of serving and timing, for every shipped spec."""

from __future__ import annotations

import json
import re
from itertools import product

import pytest

from archc.estimation.cache import CacheOptions
from archc.expansion import expand
from archc.planning.hardware import find_device
from archc.planning.parallel import Parallel
from archc.planning.serving.need import weight_bytes
from archc.planning.serving.rank_cache import cache_bytes
from archc.planning.sharding import shard
from archc.planning.timing.estimate import estimate_time
from archc.planning.timing.roofline import Roof
from archc.reporting.model import model_of
from archc.reporting.ranks import CUTS, PP
from archc.spec.load import load_spec
from archc.spec.shipped import shipped_specs
from tests.reporting.twin import At
from tests.reporting.twin_time import Split, cache, notes, problems, seconds, weights

NAMES = [name for name, path in shipped_specs().items() if path.suffix == ".yaml"]
AT = At(length=4097, batch=3, dtype="int4", kv_dtype="float8_e4m3fn")
SPLITS = [Split(), Split(tp=2, pp=2), Split(tp=4, ep=4), Split(tp=32), Split(tp=8, pp=8, ep=8)]


def placeless(messages: list[str]) -> set[str]:
    return {re.sub(r" \(\w*\.?layers\.[^)]*\)", "", message) for message in messages}


@pytest.mark.parametrize("name", NAMES)
def test_pieces_and_times_are_those_of_serving_and_timing(name: str):
    spec = load_spec(name)
    graph = expand(spec)
    model = json.loads(json.dumps(model_of(spec, "", name).data))
    options = CacheOptions("int4", "float8_e4m3fn", 1, AT.length, AT.length, None)
    device = find_device("h200")
    peak, dtype = device.peak("int4")
    legal = 0
    # Layers that are all distinct take their time.
    for split in SPLITS if len(graph.bodies()) < 200 else SPLITS[1::3]:
        parallel = Parallel(tp=split.tp, pp=split.pp, ep=split.ep)
        sharding = shard(graph, parallel)
        # A page counts the layers of the whole model where a message of several stages counts those of one.
        assert placeless(problems(model, split)) == placeless(sharding.problems)
        if sharding.problems:
            continue
        legal += 1
        assert placeless(notes(model, split)) <= placeless(sharding.notes)
        assert weights(model, split, AT) == [weight_bytes(stage, "int4") for stage in sharding.stages]
        for which in ("used", "allocated"):
            held = [
                cache_bytes(stage, graph, options, AT.batch, AT.length, allocated=which == "allocated")
                for stage in sharding.stages
            ]
            assert cache(model, split, AT, which) == held
        timing = estimate_time(
            graph,
            gpu=device,
            parallel=parallel,
            batch_size=AT.batch,
            max_model_len=AT.length,
            dtype="int4",
            kv_cache_dtype="fp8",
        )
        for step in ("prefill", "decode", "forward"):
            if step in timing.steps:
                found = seconds(model, step, split, AT, Roof(device, dtype, peak))
                assert sum(found) == pytest.approx(timing.steps[step].seconds, rel=1e-9)
                rate = timing.steps[step].tokens / timing.steps[step].tokens_per_s
                assert max(found) == pytest.approx(rate, rel=1e-9)
    assert legal


def test_pieces_times_counts_are_every_split_of_a_hybrid():
    spec = load_spec("kimi-linear-48b-a3b")
    graph = expand(spec)
    model = model_of(spec, "", "").data
    for (tp, ep), pp in product(CUTS, PP):
        sharding = shard(graph, Parallel(tp=tp, pp=pp, ep=ep))
        split = Split(tp, pp, ep)
        assert not sharding.problems
        assert weights(model, split, At(4096)) == [weight_bytes(stage, graph.dtype) for stage in sharding.stages]
