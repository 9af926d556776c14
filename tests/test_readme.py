"""The commands and the Python of README.md and CONTRIBUTING.md run as they are printed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path
from textwrap import dedent

import pytest

from archc import registry
from archc.ops.norm import GatedNorm

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
NOT_RUN = ("make", "pip", "lint-imports")
"""What installs or checks the project itself."""


def blocks(file: str, language: str) -> list[str]:
    text = (ROOT / file).read_text(encoding="utf-8")
    found = [match for match in BLOCK.finditer(text) if match["language"] == language]
    return [re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE) for match in found]


def commands() -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks("README.md", "sh") for line in block.splitlines()]
    return [line for line in lines if line and line.split()[0] not in NOT_RUN]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the README's own spec and, as in a checkout, the shipped ones."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my-hybrid.yaml").write_text(blocks("README.md", "yaml")[0])
    (folder / "specs").symlink_to(ROOT / "specs")
    _checkpoint(folder / "checkpoint")
    return folder


def _checkpoint(folder: Path) -> None:
    """A folder as transformers saves it; its tensors only where something can read them."""
    folder.mkdir()
    config = {"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24}
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2, "num_attention_heads": 2}))
    if any(find_spec(module) is None for module in ("numpy", "safetensors", "ml_dtypes")):
        return
    from archc.checkpoint.importing import import_config
    from archc.checkpoint.opening import Model
    from archc.checkpoint.writing import Writer

    parts = Model.of(import_config(folder)).plan().parts
    tensors = {part.theirs: ("F32", part.shape_there) for part in parts}
    # Written at their full size, and zero everywhere.
    Writer(folder, tensors, shard_bytes=1 << 30, metadata={"format": "pt"}).close()


def expanded(word: str, folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else [word]


def run(line: str, folder: Path) -> str:
    first, *words = shlex.split(line)
    assert first == "archc", line
    arguments = [path for word in words for path in expanded(word, folder)]
    done = subprocess.run([sys.executable, "-m", "archc", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def needs(line: str) -> list[pytest.MarkDecorator]:
    extra = {"build": [pytest.mark.torch], "export": [pytest.mark.torch, pytest.mark.onnx]}
    extra["run"] = extra["bench"] = extra["export"]
    extra["generate"] = extra["convert"] = extra["train"] = extra["build"]
    return extra["build"] if "--lock" in line or " plot run " in line else extra.get(line.split()[1], [])


@pytest.mark.parametrize("line", [pytest.param(line, marks=needs(line), id=line) for line in commands()])
def test_a_command_of_the_readme_runs(line: str, workplace: Path):
    if (" export " in line or " --lock " in line) and not (workplace / "out").exists():
        run(next(command for command in commands() if " build " in command), workplace)
    if " plot run " in line and not (workplace / "run").exists():
        run(next(command for command in commands() if " train " in command), workplace)
    assert run(line, workplace).strip()


def test_the_readme_shows_every_command():
    shown = {"estimate", "show", "validate", "build", "export", "run", "bench", "plugins", "plan", "train"}
    assert {line.split()[1] for line in commands()} >= shown


def test_the_spec_of_the_readme_is_the_hybrid_it_says(workplace: Path):
    from archc.spec.load import load_spec

    plans = load_spec(workplace / "my-hybrid.yaml").schedule()
    assert [plan.mixer for plan in plans] == [*["kda", "kda", "kda", "mla"] * 3, "kda", "mla"]


@pytest.mark.torch
def test_the_python_of_the_readme_runs():
    torch = pytest.importorskip("torch")
    (code,) = blocks("README.md", "python")
    ids = torch.randint(0, 1024, (2, 24), generator=torch.Generator().manual_seed(0))
    space = {"ids": ids}
    exec(compile(code, "README.md", "exec", dont_inherit=True), space)
    whole = space["model"](ids)
    torch.testing.assert_close(space["logits"], whole[:, 16:17], rtol=0, atol=1e-5)


def test_the_mistakes_of_the_readme_are_worded_as_it_says():
    from archc.errors import SpecError
    from archc.spec.load import loads_spec

    (shown,) = blocks("README.md", "text")
    text = blocks("README.md", "yaml")[0]
    # The wrong spec is not printed: it is the README's own with other mixers.
    before, after = text.index("mixers:"), text.index("ffns:")
    wrong = f"{text[:before]}mixers:\n  attn: {{kind: gqa, num_attention_heads: 8, num_kv_heads: 1}}\n{text[after:]}"
    wrong = re.sub(r"  mixer: .*", "  mixer: attn*", wrong)
    with pytest.raises(SpecError) as caught:
        loads_spec(wrong, file="bad.yaml")
    first, *lines = shown.strip().splitlines()
    assert first == f"archc: {len(lines)} problems in bad.yaml"
    assert [line.strip() for line in lines] == [str(problem) for problem in caught.value.problems]


@pytest.mark.torch
def test_the_kind_of_the_contributing_page_keeps_the_contract_as_the_page_says():
    pytest.importorskip("torch")
    kind, test, _ = blocks("CONTRIBUTING.md", "python")
    space: dict[str, object] = {"__name__": "gated_head"}
    exec(compile(kind, "CONTRIBUTING.md", "exec", dont_inherit=True), space)
    exec(compile(test, "CONTRIBUTING.md", "exec", dont_inherit=True), space)
    with registry.temporary({("mixer", "gated_head"): space["GatedHead"]}):
        space["test_gated_head_keeps_the_contract"]()  # type: ignore[operator]


def test_what_the_contributing_page_shows_of_backward_is_how_an_op_says_it():
    shown = blocks("CONTRIBUTING.md", "python")[2]
    assert dedent(getsource(GatedNorm.saves)) == shown


def test_files_and_figures_that_the_pages_link_to_exist():
    missing = []
    for page in ("README.md", "CONTRIBUTING.md", "docs/design.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
        missing += [f"{page}: {link}" for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []
