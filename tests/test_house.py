"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("archc", "plugins", "exporters")
MAX_LINES = 400
GROUPS = {
    "archc.mixer",
    "archc.ffn",
    "archc.router",
    "archc.norm",
    "archc.position",
    "archc.scaling",
    "archc.score",
    "archc.block",
    "archc.head",
    "archc.embedding",
    "archc.cache",
    "archc.tokenizer",
    "archc.torch",
    "archc.onnx",
    "archc.exporter",
    "archc.runtime",
    "archc.inspector",
    "archc.checkpoint",
}
"""A promise to authors of plugins: a group may be added here, never renamed or removed."""


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_file_is_of_a_readable_size():
    files = sources(*PACKAGES, "tests", "examples", "benchmarks")
    long = {shown(path): count for path in files if (count := len(path.read_text("utf-8").splitlines())) > MAX_LINES}
    assert len(files) > 100
    assert long == {}


def test_every_module_says_what_it_is_for():
    silent = [shown(path) for path in sources(*PACKAGES) if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert silent == []


def test_every_public_class_and_function_of_the_core_says_what_cannot_be_seen():
    silent = []
    for path in sources("archc/ir", "archc/graph", "plugins"):
        for node in ast.parse(path.read_text("utf-8")).body:
            is_public = isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
            if is_public and not ast.get_docstring(node):
                silent.append(f"{shown(path)}: {node.name}")
    assert silent == []


def test_no_tracked_file_knows_the_machine_it_was_written_on():
    if not (ROOT / ".git").exists():
        pytest.skip("no repository")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    # In two pieces, so that this file does not know one either.
    homes = tuple(f"/{home}/".encode() for home in ("work", "home", "root", "Users"))
    found = {}
    for name in listed.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink():
            lines = [line for line in path.read_bytes().splitlines() if any(home in line for home in homes)]
            if lines:
                found[name] = lines[0]
    assert found == {}


def test_groups_of_entry_points_are_the_promised_ones():
    assert set(project()["entry-points"]) == GROUPS


def test_every_entry_point_leads_to_something():
    from importlib.util import find_spec

    targets = [target for group in project()["entry-points"].values() for target in group.values()]
    for target in targets:
        module, _, name = target.partition(":")
        spec = find_spec(module.rpartition(".")[0])
        assert spec is not None, target
        assert spec.submodule_search_locations is not None, target
        file = Path(next(iter(spec.submodule_search_locations))) / f"{module.rpartition('.')[2]}.py"
        tree = ast.parse(file.read_text("utf-8"))
        assert name in {getattr(node, "name", None) for node in tree.body}, target


def test_every_op_has_a_lowering_for_torch_and_for_onnx():
    groups = project()["entry-points"]
    names = {
        node.value.value
        for path in sources("archc/ops")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "op_name"
        if isinstance(node.value, ast.Constant)
    }
    assert names == set(groups["archc.torch"]) == set(groups["archc.onnx"])


@pytest.mark.torch
def test_every_public_name_is_there():
    import archc

    pytest.importorskip("torch")
    assert [name for name in archc.__all__ if getattr(archc, name, None) is None] == []
    functions = [name for name in archc.__all__ if name not in ("Parallel", "Step", "__version__")]
    assert [name for name in functions if type(getattr(archc, name)).__name__ != "function"] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = archc.nothing


def test_importing_archc_loads_nothing_else():
    code = "import sys; before = set(sys.modules); import archc; print(sorted(m for m in set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ast.literal_eval(done.stdout)
    assert [
        name for name in loaded if name.split(".")[0] in ("torch", "numpy", "pydantic", "yaml", "click", "onnx")
    ] == []
    assert {name for name in loaded if name.startswith("archc")} == {"archc", "archc._version"}
