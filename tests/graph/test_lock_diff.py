"""What changed between a lockfile and a graph is said in words, and a lockfile that is none is refused, whatever is in it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archc.errors import ArchcError
from archc.graph import lock_diff
from archc.graph.lock_diff import difference, read_lock
from archc.graph.lockfile import to_lock
from tests.graph.examples import GQA, MLA, ROPE, WINDOWED, small

BASE = {"mixer": "(one two)*", "ffn": "mlp moe*"}


def lock(*args: Any, **words: Any) -> dict[str, Any]:
    return json.loads(json.dumps(to_lock(small(*args, **{**BASE, **words}))))


def changes(new: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    return difference(old or lock(), new).changes


def test_an_equal_graph_has_no_difference():
    assert difference(lock(), to_lock(small(**BASE))) == lock_diff.Difference()


def test_a_width_is_a_changed_attribute_and_a_changed_weight_of_the_layers_that_have_it():
    wider = GQA.replace("num_kv_heads: 2", "num_kv_heads: 4")
    assert changes(lock(wider)) == [
        "layers 0,2: mixer.k_proj: width is 32, was 16",
        "layers 0,2: mixer.k_proj: weight weight: shape is [32, 32], was [16, 32]",
        "layers 0,2: mixer.v_proj: width is 32, was 16",
        "layers 0,2: mixer.v_proj: weight weight: shape is [32, 32], was [16, 32]",
        "layers 0,2: mixer.rotary 2 gives model[batch, seq, 32, kv_heads], before model[batch, seq, 16, kv_heads]",
        "layers 0,2: mixer.attention: num_kv_heads is 4, was 2",
        'layers 0,2: mixer.attention: state key: used is ["batch", 4, "past + seq", 8], was ["batch", 2, "past + seq", 8]',
        'layers 0,2: mixer.attention: state key: allocated is ["batch", 4, "capacity", 8], was ["batch", 2, "capacity", 8]',
        'layers 0,2: mixer.attention: state value: used is ["batch", 4, "past + seq", 8], was ["batch", 2, "past + seq", 8]',
        'layers 0,2: mixer.attention: state value: allocated is ["batch", 4, "capacity", 8], was ["batch", 2, "capacity", 8]',
    ]


def test_a_window_changes_an_attribute_and_the_growth_of_states():
    found = changes(lock(WINDOWED))
    assert found[0] == "layers 0,2: mixer.attention: window is 4, was null"
    assert "layers 0,2: mixer.attention: state key: growth is ring, was append" in found


def test_new_and_gone_ops_are_named_with_what_reads_them():
    normed = GQA.replace("head_dim: 8", "head_dim: 8, qk_norm: head")
    assert [line for line in changes(lock(normed)) if "norm" in line] == [
        "layers 0,2: mixer.q_norm (rms_norm) is new",
        "layers 0,2: mixer.k_norm (rms_norm) is new",
        "layers 0,2: mixer.rotary 1 reads mixer.q_norm, input 1, input 2, before mixer.q_proj, input 1, input 2",
        "layers 0,2: mixer.rotary 2 reads mixer.k_norm, input 1, input 2, before mixer.k_proj, input 1, input 2",
    ]
    assert "layers 0,2: mixer.q_norm (rms_norm) is gone" in changes(lock(), lock(normed))


def test_a_bias_is_a_new_weight():
    biased = GQA.replace("head_dim: 8", "head_dim: 8, o_bias: true")
    assert changes(lock(biased)) == [
        "layers 0,2: mixer.o_proj: bias is true, was false",
        "layers 0,2: mixer.o_proj: weight bias [32] is new",
    ]


def test_another_mixer_in_a_layer_is_one_line():
    assert changes(lock(mixer="one two two one")) == [
        "layer 2: is two + moe, was one + moe",
        "layer 3: is one + moe, was two + moe",
    ]


def test_more_layers_are_a_number_and_what_differs_in_those_that_both_have():
    assert changes(lock(layers=6)) == ["number of layers is 6, was 4"]


def test_the_header_and_the_root_are_compared_too():
    new = lock(position=ROPE.replace("10000.0", "500.0"), tied="true")
    found = changes({**new, "name": "other", "dtype": "float16"})
    assert found[:2] == ["name is other, was small", "dtype is float16, was bfloat16"]
    (table,) = [line for line in found if line.startswith("model: rope_0: frequencies is ")]
    assert len(table) < 200
    assert "model: lm_head: tied is true, was false" in found


def test_extra_prediction_layers_that_appear_vanish_or_change_are_said():
    extra = [lock(more=f"mtp: {{num_layers: {count}, mixer: one, ffn: mlp}}") for count in (1, 2)]
    assert changes(extra[0]) == ["mtp: the extra prediction layers are new"]
    assert changes(lock(), extra[0]) == ["mtp: the extra prediction layers are gone"]
    assert changes(extra[1], extra[0]) == ["mtp: number of layers is 2, was 1"]


def test_another_kind_without_another_op_is_a_change_and_another_version_a_note():
    old, new = lock(), lock()
    new["archc"] = "99"
    new["plugins"]["mixer:gqa"] = ["another-package", "1"]
    found = difference(old, new)
    assert found.changes == []
    assert found.notes == [
        f"archc is 99, was {old['archc']}",
        f"package of mixer.gqa is another-package 1, was {' '.join(old['plugins']['mixer:gqa'])}",
    ]
    new["plugins"]["cache:window"] = new["plugins"].pop("cache:full")
    assert changes(new, old) == ["kind cache.window is new", "kind cache.full is gone"]


def test_a_graph_that_differs_in_nothing_that_has_a_name_still_differs():
    old, new = lock(), lock()
    new["model"]["label"] = "other"
    assert changes(new, old) == ["model: the same ops, weights and states, but values flow between them in another way"]


def test_a_mixer_of_another_kind_under_its_old_name_is_compared_op_by_op():
    found = changes(lock(MLA))
    assert "layers 0,2: mixer.attention is latent_attention, was attention" in found


FILES = {
    "not JSON": (b"{", "not JSON"),
    "not text": (b"\xff\xfe\xff", "not JSON"),
    "a list": (b"[1]", "is no lockfile of archc; archc show SPEC --lock prints one"),
    "a spec": (b"spec_version: 1", "not JSON"),
    "another JSON": (b'{"a": 1}', "is no lockfile of archc"),
    "another format": (b'{"format": 99}', "a lockfile of format 99; this archc reads 1"),
    "a deep one": (b"[" * 200_000, "not JSON"),
    "a long number": (b'{"format": ' + b"9" * 10_000 + b"}", "not JSON"),
}


@pytest.mark.parametrize(("data", "message"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_lockfile_is_refused(tmp_path, data, message):
    path = tmp_path / "graph.json"
    path.write_bytes(data)
    with pytest.raises(ArchcError, match=r"graph\.json: ") as caught:
        read_lock(str(path))
    assert message in str(caught.value)


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(tmp_path, monkeypatch):
    for path, message in ((tmp_path / "none", "No such file"), (tmp_path, "is no file"), ("a\0b", "can't be read")):
        with pytest.raises(ArchcError, match=message):
            read_lock(str(path))
    monkeypatch.setattr(lock_diff, "MAX_BYTES", 10)
    (tmp_path / "long").write_text(" " * 11)
    with pytest.raises(ArchcError, match="larger than 10 bytes"):
        read_lock(str(tmp_path / "long"))


def test_a_block_that_holds_itself_is_refused():
    old = lock()
    name = old["layers"][0]
    old["blocks"][name]["items"] = [{"scope": "again", "block": name, "in": [], "out": [0]}] * 2
    old["blocks"][name]["in"] = []
    with pytest.raises(ArchcError, match=r"graph\.json: is no lockfile of archc, or damaged"):
        difference(old, lock(WINDOWED), file="graph.json")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


OLD, NEW = lock(), lock(WINDOWED, layers=6)
PLACES = places(OLD)[1:]
JUNK = st.sampled_from([None, 0, -1, 1.5, "x", [], {}, [[]], [0], {"a": 1}, "layers.x", 10**30])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PLACES), JUNK)
def test_a_damaged_lockfile_is_a_difference_or_an_error_of_the_user(place, junk):
    damaged = copy.deepcopy(OLD)
    home = damaged
    for key in place[:-1]:
        home = home[key]
    home[place[-1]] = junk
    try:
        found = difference(damaged, NEW)
    except ArchcError:
        return
    assert all(isinstance(line, str) for line in found.changes)
