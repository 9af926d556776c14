"""The lockfile is byte-stable, folded, and changes with everything that a backend reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version

import pytest

from archc.expansion import expand
from archc.graph.lockfile import to_lock, to_text
from archc.spec.load import load_spec
from tests.graph.examples import GQA, KDA, MLA, SINKS, WINDOWED, small

NAMES = ("deepseek-v3", "tiny-gpt-oss", "kimi-linear-48b-a3b")


def test_two_processes_write_the_same_bytes_whatever_the_hash_seed():
    code = (
        "import sys\n"
        "from archc.expansion import expand\n"
        "from archc.graph.lockfile import to_text\n"
        "from archc.spec.load import load_spec\n"
        f"sys.stdout.write(''.join(to_text(expand(load_spec(name))) for name in {NAMES}))"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert texts[0].decode() == "".join(to_text(expand(load_spec(name))) for name in NAMES)


def test_sixty_one_layers_of_deepseek_v3_are_two_blocks():
    graph = expand(load_spec("deepseek-v3"))
    lock = to_lock(graph)
    dense, moe = dict.fromkeys(lock["layers"])
    assert lock["layers"] == [dense] * 3 + [moe] * 58
    labels = sorted(block["label"] for block in lock["blocks"].values())
    assert labels == ["dense", "mla", "mla + dense", "mla + moe", "moe", "shared experts"]
    assert lock["mtp"]["layers"] == [moe]
    shallow = to_lock(expand(load_spec("deepseek-v3", ["stack.num_layers=4"])))
    assert shallow["blocks"] == lock["blocks"]


def test_the_text_is_sorted_json_that_ends_in_a_newline():
    text = to_text(small())
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def test_the_packages_of_all_kinds_are_recorded_with_their_versions():
    plugins = to_lock(expand(load_spec("tiny-deepseek-v3")))["plugins"]
    assert set(plugins) == {
        "block:pre_norm",
        "cache:full",
        "embedding:token",
        "ffn:moe",
        "ffn:swiglu",
        "head:lm",
        "mixer:mla",
        "norm:rms_norm",
        "position:rope",
        "router:topk",
        "scaling:yarn",
        "tokenizer:external",
    }
    assert set(map(tuple, plugins.values())) == {("archc-compiler", version("archc-compiler"))}


def changed(value):
    """Another value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, tuple):
        return (*value, 1) if value else (1,)
    field = fields(value)[0].name
    return type(value)(
        **{**{f.name: getattr(value, f.name) for f in fields(value)}, field: changed(getattr(value, field))}
    )


def attributes(graph):
    """(object, attribute) of everything that a backend reads off the nodes of a graph."""
    for body in graph.bodies():
        for node in body.nodes():
            for field in fields(node.op):
                yield node.op, field.name
            for owned in (*node.params.values(), *node.states.values()):
                for name in type(owned).__slots__:
                    yield owned, name
            yield node, "name"
        yield body, "label"
        for call in body.calls():
            yield call, "name"


@pytest.mark.parametrize(
    ("one", "two"), [(SINKS, WINDOWED), (MLA, KDA)], ids=["softmax attention", "latent and linear attention"]
)
def test_every_attribute_of_every_op_weight_and_state_is_in_it(one, two):
    scaling = "{kind: rope, theta: 10000.0, scaling: {kind: linear, factor: 2.0}}"
    graph = small(one, two, mixer="one two", ffn="mlp moe", layers=2, position=scaling)
    before = to_text(graph)
    unseen, count = [], 0
    for owner, name in attributes(graph):
        kept = getattr(owner, name)
        object.__setattr__(owner, name, changed(kept))
        if to_text(graph) == before:
            unseen.append(f"{type(owner).__name__}.{name} of {owner}")
        object.__setattr__(owner, name, kept)
        count += 1
    assert to_text(graph) == before
    assert unseen == []
    assert count > 200


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "dtype=float32",
        "max_position_embeddings=77",
        "tokenizer.vocab_size=1023",
        "norm.eps=1e-4",
        "position.theta=999.0",
        "embedding.scale=2.0",
        "stack.num_layers=3",
        "cache.dtype=float16",
        "head.bias=true",
    ],
)
def test_a_change_of_the_spec_changes_it(override):
    assert to_text(expand(load_spec("tiny-llama", [override]))) != to_text(expand(load_spec("tiny-llama")))


def test_only_the_block_that_changed_has_another_hash():
    before = to_lock(small(GQA, KDA, mixer="(one two)*"))
    after = to_lock(small(GQA, KDA.replace("head_dim", "conv_kernel: 3, head_dim"), mixer="(one two)*"))
    pairs = list(zip(before["layers"], after["layers"], strict=True))
    assert [old == new for old, new in pairs] == [True, False, True, False]
