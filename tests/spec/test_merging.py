from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from archc.errors import SpecError
from archc.expansion import expand
from archc.graph.lockfile import to_text
from archc.spec.emit import emit
from archc.spec.load import load_spec, loads_spec
from archc.spec.reader import read_text
from archc.spec.resolved import resolved
from archc.spec.shipped import shipped_specs

Mistakes = Callable[..., list[str]]


def _write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def _problems(path: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    return [str(problem).replace(str(Path(path).parent) + "/", "") for problem in caught.value.problems]


# B: siblings


def test_a_sibling_takes_all_keys_and_replaces_its_own_whole(base: str) -> None:
    text = base.replace(
        "  mla: {kind: zattend, num_heads: 2, head_dim: 32}",
        "  mla: {extends: kda, head_dim: 32, position: {kind: zorder, theta: 1.0}}\n"
        "  other: {extends: mla, position: {kind: zorder, theta: 2.0}}",
    ).replace("position: none", "position: {kind: zorder, theta: 9.0, scaling: {kind: zstretch, factor: 2.0}}")
    spec = loads_spec(text)
    assert (spec.mixers["mla"].num_heads, spec.mixers["mla"].head_dim) == (4, 32)
    assert spec.mixers["other"].position.theta == 2.0
    # Nothing of an outer position leaks in.
    assert spec.mixers["other"].position.scaling is None


def test_a_sibling_with_a_kind_keeps_the_keys_and_an_unknown_one_is_an_error(base: str, mistakes: Mistakes) -> None:
    text = base.replace(
        "  mla: {kind: zattend, num_heads: 2, head_dim: 32}", "  mla: {extends: kda, kind: zwide, width: 3}"
    )
    spec = loads_spec(text)
    assert (type(spec.mixers["mla"]).kind_name, spec.mixers["mla"].num_heads, spec.mixers["mla"].width) == (
        "zwide",
        4,
        3,
    )
    assert mistakes(text.replace("num_heads: 4,", "num_heads: 4, qk_norm: head,"))[0].startswith(
        "my.yaml:8:38: mixers.mla.qk_norm: unknown key."
    )


def test_a_null_removes_what_a_sibling_had(base: str) -> None:
    text = base.replace("head_dim: 16}", "head_dim: 16, sliding_window: 8}").replace(
        "  mla: {kind: zattend, num_heads: 2, head_dim: 32}", "  mla: {extends: kda, sliding_window: null}"
    )
    spec = loads_spec(text)
    assert (spec.mixers["kda"].sliding_window, spec.mixers["mla"].sliding_window) == (8, None)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{extends: kdaa}", "my.yaml:9:18: mixers.mla.extends: no mixer is called kdaa. Did you mean kda?"),
        ("{extends: moe}", "my.yaml:9:18: mixers.mla.extends: moe is in ffns; a mixer extends a mixer"),
        ("{extends: mla}", "my.yaml:9:18: mixers.mla.extends: extends itself (mla -> mla)"),
        ("{extends: [kda]}", "my.yaml:9:18: mixers.mla.extends: should be the name of a mixer"),
    ],
)
def test_a_base_that_is_not_there_is_one_problem(base: str, mistakes: Mistakes, entry: str, message: str) -> None:
    assert mistakes(base.replace("{kind: zattend, num_heads: 2, head_dim: 32}", entry)) == [message]


def test_a_ring_of_siblings_is_printed(base: str, mistakes: Mistakes) -> None:
    text = base.replace(
        "  mla: {kind: zattend, num_heads: 2, head_dim: 32}",
        "  mla: {extends: b}\n  b: {extends: c}\n  c: {extends: b}",
    )
    assert mistakes(text) == ["my.yaml:11:16: mixers.c.extends: extends itself (b -> c -> b)"]


# C: parent files


CHILD = """\
extends: base.yaml
name: child
"""


def test_a_mapping_amends_and_anything_else_replaces(tmp_path: Path, base: str) -> None:
    _write(
        tmp_path,
        "base.yaml",
        base.replace("  mla: {kind: zattend, num_heads: 2, head_dim: 32}", "  mla: {extends: kda}"),
    )
    child = _write(
        tmp_path, "child.yaml", CHILD + "mixers: {kda: {num_heads: 8}}\nstack: {num_layers: 8, mixer: (kda mla)*}\n"
    )
    spec = load_spec(child)
    assert spec.name == "child"
    assert spec.stack.num_layers == 8
    assert [plan.mixer for plan in spec.schedule()[:3]] == ["kda", "mla", "kda"]
    # A mixer changed in a child file changes the mixers that extend it.
    assert (spec.mixers["mla"].num_heads, spec.mixers["mla"].head_dim) == (8, 16)


def test_a_stated_kind_replaces_and_one_that_is_not_amends(tmp_path: Path, base: str) -> None:
    _write(
        tmp_path, "base.yaml", base.replace("position: none", "position: {kind: zorder, theta: 9.0, limits: [0, 1]}")
    )
    amended = load_spec(_write(tmp_path, "a.yaml", CHILD + "position: {theta: 3.0}\n"))
    assert (amended.position.theta, amended.position.limits) == (3.0, (0.0, 1.0))
    replaced = load_spec(_write(tmp_path, "b.yaml", CHILD + "position: {kind: zorder, theta: 3.0}\n"))
    assert replaced.position.limits is None
    bare = load_spec(_write(tmp_path, "c.yaml", CHILD + "position: none\n"))
    assert bare.position.kind_name == "none"


def test_a_bare_kind_counts_as_its_mapping(tmp_path: Path, base: str) -> None:
    _write(tmp_path, "base.yaml", base)
    spec = load_spec(_write(tmp_path, "child.yaml", CHILD + "stack: {block: {residual_multiplier: 0.22}}\n"))
    assert spec.stack.block.kind_name == "pre_norm"
    assert spec.stack.block.residual_multiplier.resolve({}) == 0.22


def test_a_cache_is_told_by_its_policy(tmp_path: Path, base: str) -> None:
    _write(tmp_path, "base.yaml", base + "cache: {policy: zwindow, window: 8, dtype: float16}\n")
    amended = load_spec(_write(tmp_path, "a.yaml", CHILD + "cache: {window: 4}\n"))
    assert (amended.cache.window, amended.cache.dtype) == (4, "float16")
    replaced = load_spec(_write(tmp_path, "b.yaml", CHILD + "cache: {policy: zwindow, window: 4}\n"))
    assert replaced.cache.dtype is None


def test_names_are_no_kinds(tmp_path: Path, base: str) -> None:
    named = base.replace("kda", "kind").replace("kind: {kind", "kind: {kind").replace("mla", "policy")
    _write(tmp_path, "base.yaml", named)
    spec = load_spec(_write(tmp_path, "child.yaml", CHILD + "mixers: {kind: {num_heads: 8}}\n"))
    assert set(spec.mixers) == {"kind", "policy"}
    assert (spec.mixers["kind"].num_heads, spec.mixers["kind"].head_dim) == (8, 16)


def test_null_removes_sections_entries_and_keys(tmp_path: Path, base: str) -> None:
    _write(
        tmp_path,
        "base.yaml",
        base.replace("head_dim: 16}", "head_dim: 16, sliding_window: 8}")
        + "mtp: {num_layers: 1, mixer: mla, ffn: moe}\n",
    )
    text = CHILD + "mtp: null\nmixers: {kda: {sliding_window: null}}\nffns: {dense: null}\nstack: {ffn: moe}\n"
    spec = load_spec(_write(tmp_path, "child.yaml", text))
    assert spec.mtp is None
    assert set(spec.ffns) == {"moe"}
    assert spec.mixers["kda"].sliding_window is None


def test_errors_point_to_the_file_that_wrote_the_value(tmp_path: Path, base: str) -> None:
    _write(tmp_path, "base.yaml", base.replace("head_dim: 16", "head_dim: wide"))
    _write(tmp_path, "middle.yaml", CHILD + "embedding: {hidden_size: 1.5}\n")
    child = _write(
        tmp_path, "child.yaml", "extends: middle.yaml\nname: x\nstack: {num_layers: 5}\nmixers: {kda: {num_head: 3}}\n"
    )
    assert _problems(child) == [
        "child.yaml:4:16: mixers.kda.num_head: unknown key. Did you mean num_heads?",
        "base.yaml:8:48: mixers.kda.head_dim: should be an integer (found 'wide')",
        "base.yaml:16:10: stack.mixer: 4 layers, but the stack has 5. Did you mean kda*3 mla* (3 kda, 2 mla)?",
        "middle.yaml:3:26: embedding.hidden_size: should be an integer (found 1.5)",
    ]


def test_a_child_states_its_own_name(tmp_path: Path, base: str) -> None:
    _write(tmp_path, "base.yaml", base)
    child = _write(tmp_path, "child.yaml", "extends: base.yaml\nstack: {num_layers: 4}\n")
    assert _problems(child) == ["child.yaml:1:1: name is required: a child states its own"]


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("nowhere.yaml", "extends: no such file (found nowhere.yaml)"),
        ("base", "extends: no such file (found base). Did you mean base.yaml?"),
        ("[base.yaml, other.yaml]", "extends: one parent a file"),
        ("3", "extends: should be the path of another spec"),
        ("child.yaml", "extends: the parents come back to where they started (child.yaml -> child.yaml)"),
        ("'a\\0b.yaml'", None),
        (".", "is no file"),
        ("/dev/zero", "is no file"),
    ],
)
def test_a_parent_that_cannot_be_read_is_an_error(tmp_path: Path, base: str, extends: str, message: str | None) -> None:
    _write(tmp_path, "base.yaml", base)
    found = _problems(_write(tmp_path, "child.yaml", f"extends: {extends}\nname: child\n"))
    assert len(found) == 1
    assert message is None or found[0].endswith(message)


def test_a_cycle_of_files_prints_the_chain(tmp_path: Path) -> None:
    for here, there in (("a", "b"), ("b", "c"), ("c", "b")):
        _write(tmp_path, f"{here}.yaml", f"extends: {there}.yaml\nname: {here}\n")
    assert _problems(str(tmp_path / "a.yaml")) == [
        "c.yaml:1:10: extends: the parents come back to where they started (b.yaml -> c.yaml -> b.yaml)"
    ]


def test_sixteen_parents_are_read_and_seventeen_are_not(tmp_path: Path, base: str) -> None:
    _write(tmp_path, "s0.yaml", base)
    for number in range(1, 18):
        _write(tmp_path, f"s{number}.yaml", f"extends: s{number - 1}.yaml\nname: s{number}\n")
    assert load_spec(tmp_path / "s16.yaml").name == "s16"
    assert _problems(str(tmp_path / "s17.yaml")) == ["s1.yaml:1:10: extends: more than 16 parents"]


# D: --set


def test_set_writes_one_leaf_over_everything(base: str) -> None:
    text = base.replace("head_dim: 16}", "head_dim: 16, sliding_window: 8}").replace("kda*3 mla", "(kda*3 mla)*")
    spec = loads_spec(
        text,
        overrides=[
            "stack.num_layers=8",
            "mixers.kda.sliding_window=null",
            "stack.block.residual_multiplier=1/4",
            "norm.eps=1e-6",
            "stack.ffn=moe",
            "description=",
        ],
    )
    assert spec.stack.num_layers == 8
    assert spec.mixers["kda"].sliding_window is None
    assert spec.stack.block.residual_multiplier.resolve({}) == 0.25
    assert spec.norm.eps == 1e-6


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stack.num_layers", "--set stack.num_layers: should be path=value, as in stack.num_layers=7"),
        ("stack..x=1", "--set stack..x=1: should be path=value, as in stack.num_layers=7"),
        ("extends=a.yaml", "--set extends=a.yaml: a file's parent can't be set"),
        ("stack.num_layers=7x", "--set stack.num_layers=7x: stack.num_layers: should be an integer (found '7x')"),
        (
            "mixers.kda.num_head=1",
            "--set mixers.kda.num_head=1: mixers.kda.num_head: unknown key. Did you mean num_heads?",
        ),
        (".".join("a" * 20) + "=1", None),
        ("stack.ffn=*x", "--set stack.ffn=*x: unknown alias *x"),
        ("stack.ffn=[", None),
    ],
)
def test_a_bad_override_names_itself(base: str, mistakes: Mistakes, override: str, message: str | None) -> None:
    found = mistakes(base, overrides=[override])
    assert len(found) == 1
    assert message is None or found == [message]


# All together


def test_resolved_writes_everything_out_and_loads_to_an_equal_spec(tmp_path: Path, base: str) -> None:
    _write(
        tmp_path,
        "base.yaml",
        base.replace(
            "  mla: {kind: zattend, num_heads: 2, head_dim: 32}",
            "  mla: {extends: kda, softmax_scale: 1/sqrt(head_dim)}",
        ),
    )
    child = _write(
        tmp_path, "child.yaml", CHILD + 'description: "a: b # c"\nmtp: {num_layers: 1, mixer: mla, ffn: moe}\n'
    )
    result = resolved(child, ["stack.num_layers=4", "mixers.kda.tokens=[1, 2]"])
    again = loads_spec(result.to_yaml())
    assert again == result.spec
    assert loads_spec(result.to_yaml(origins=True)) == result.spec
    assert result.tree["mixers"]["mla"]["softmax_scale"] == "1/sqrt(head_dim)"
    marks = {".".join(map(str, path)): origin for path, origin in result.origins.items()}
    assert marks["mixers.mla.num_heads"] == (str(tmp_path / "base.yaml"), 8, 35)
    assert marks["name"] == (child, 2, 7)
    assert marks["stack.num_layers"] == ("--set stack.num_layers=4", 0, 0)
    assert marks["cache.policy"] == marks["mixers.mla.num_kv_heads"] == "default"


@pytest.mark.parametrize(
    "text",
    [
        "no",
        "3:1",
        "1e-5",
        "010",
        "null",
        "a: b",
        "x #y",
        "é\u2028\x7f\t",
        "'",
        '"\\',
        " lead",
        "",
        "*a",
        "0x10",
        "true",
    ],
)
def test_any_text_survives_being_written_out(text: str) -> None:
    tree = {"description": text, "list": [text, {text: 1e22}]}
    node, problems = read_text(emit(tree), "x")
    assert not problems
    assert node.plain() == tree


@pytest.mark.parametrize("name", sorted(shipped_specs()))
def test_a_shipped_spec_with_everything_written_out_is_the_same_model(name: str) -> None:
    # A rule that looks at what was stated instead of what it says would refuse a default that is written out.
    written = resolved(name)
    assert to_text(expand(loads_spec(written.to_yaml()))) == to_text(expand(written.spec))
