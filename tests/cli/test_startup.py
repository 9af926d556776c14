"""What a command loads, seen from a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "onnx", "onnxruntime", "rich")
SPEC_LIBRARIES = ("pydantic", "yaml")


def loaded(*arguments: str, watched: tuple[str, ...]) -> list[str]:
    code = (
        "import sys\n"
        f"sys.argv = ['archc', *{list(arguments)!r}]\n"
        "from archc.cli.main import run\n"
        "try:\n"
        "    run()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        f"print(*[name for name in {watched!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    return done.stderr.split()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *(
            [name, "--help"]
            for name in (
                "estimate",
                "complexity",
                "show",
                "validate",
                "build",
                "export",
                "run",
                "bench",
                "inspect",
                "import",
                "convert",
                "plan",
                "train",
                "plot",
            )
        ),
    ],
    ids=" ".join,
)
def test_help_loads_nothing_but_click(arguments: list[str]):
    assert loaded(*arguments, watched=HEAVY + SPEC_LIBRARIES) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["estimate", "kimi-linear-48b-a3b"],
        ["complexity", "kimi-linear-48b-a3b"],
        ["show", "kimi-linear-48b-a3b"],
        ["validate", "tiny-llama"],
        ["plan", "kimi-linear-48b-a3b", "--tp", "8"],
        ["plugins"],
        ["plugins", "--json"],
        ["plugins", "show", "mixer.kda"],
    ],
    ids=" ".join,
)
def test_commands_on_specs_load_neither_torch_nor_numpy_nor_rich(arguments: list[str]):
    assert loaded(*arguments, watched=HEAVY) == []


def test_listing_plugins_imports_none_of_them():
    assert loaded("plugins", watched=("archc_plugins", "archc_exporters", "pydantic")) == []
