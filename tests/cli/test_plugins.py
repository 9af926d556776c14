"""``archc plugins`` and ``archc plugins show``: what is installed, and what each kind comes to."""

from __future__ import annotations

import json

import pytest

from archc import registry
from archc.cli.plugin_show import OPLESS
from archc.cli.plugin_source import first_line
from archc.families import FFN

KINDS = [
    f"{plugin.family}.{plugin.name}"
    for plugin in registry.installed()
    if plugin.family in registry.FAMILIES and plugin.package == "archc-compiler"
]


def rows(invoke, *arguments):
    return json.loads(invoke("plugins", *arguments, "--json").stdout)["plugins"]


def test_each_plugin_has_one_line_that_says_what_it_is(invoke):
    lines = invoke("plugins", "--family", "mixer").stdout.splitlines()
    assert lines[0].split() == ["family", "name", "package", "summary"]
    (kda,) = [line for line in lines if line.split()[1] == "kda"]
    assert kda.split()[:3] == ["mixer", "kda", "archc-compiler"]
    assert "Kimi Delta Attention, arXiv 2510.26692" in kda


@pytest.mark.parametrize("kind", KINDS)
def test_the_line_that_is_read_from_the_source_is_that_of_the_class(kind):
    family, name = kind.split(".")
    (plugin,) = (each for each in registry.installed() if (each.family, each.name) == (family, name))
    assert first_line(plugin.target) == registry.load(family, name).__doc__.strip().split("\n", 1)[0]


def test_a_source_that_is_not_there_is_no_line():
    assert first_line("no_such_package.file:Thing") == ""
    assert first_line("archc.registry:nothing") == ""
    assert first_line("sys:path") == ""


def test_json_says_where_each_kind_is_used(invoke):
    used = {row["name"]: row["used_in"] for row in rows(invoke, "--family", "mixer")}
    assert used["kda"] == ["kimi-k3", "kimi-linear-48b-a3b", "tiny-kimi-linear"]
    assert "llama-3-8b" in used["gqa"]
    routers = {row["name"]: row["used_in"] for row in rows(invoke, "--family", "router")}
    assert "deepseek-v3" in routers["topk"]
    assert rows(invoke, "--family", "torch")[0]["used_in"] == []


def test_verbose_names_a_few_specs_and_counts_the_rest(invoke):
    text = invoke("plugins", "--family", "mixer", "-v").stdout
    assert "kimi-linear-48b-a3b, tiny-kimi-linear" in text
    assert " more" in text
    assert "archc_plugins.mixer.kda:KDA" in text


def test_options_before_a_command_of_its_own_are_refused(invoke):
    result = invoke("plugins", "--family", "mixer", "show", "mixer.kda")
    assert result.exit_code == 2
    assert "say nothing to show" in result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_every_installed_kind_can_be_shown(invoke, kind):
    result = invoke("plugins", "show", kind, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["kind"] == kind
    assert found["doc"]
    assert all(key["meaning"] and key["type"] for key in found["fields"])
    assert "not_traced" not in found, found.get("not_traced")
    if kind.split(".")[0] in OPLESS:
        assert "ops" not in found
    else:
        assert {target: said["missing"] for target, said in found["targets"].items()} == {"torch": [], "onnx": []}
    assert invoke("plugins", "show", kind).stdout.startswith(kind)


def test_a_kind_is_shown_as_it_stands_in_a_shipped_spec(invoke):
    found = json.loads(invoke("plugins", "show", "mixer.kda", "--json").stdout)
    keys = {key["name"]: (key["type"], key["default"], key["required"]) for key in found["fields"]}
    assert keys["num_heads"] == ("int > 0", "required", True)
    assert keys["conv_kernel"] == ("int ≥ 2", "4", False)
    assert (found["traced_in"], found["traced_with"]) == (
        "kimi-k3",
        "num_heads: 96, head_dim: 128, conv_kernel: 4, full_rank_gate: true, decay_floor: -5.0",
    )
    assert found["ops"]["linear"] == 8
    weights = {weight["name"]: weight["shape"] for weight in found["weights"]}
    assert weights["q_proj.weight"] == [12288, 7168]
    state = {state["name"]: (state["shape"], state["growth"], state["dtype"]) for state in found["states"]}
    assert state["delta_rule.recurrent_state"] == (["batch", 96, 128, 128], "fixed", "float32")
    assert state["conv.conv_state"][0] == ["batch", 3, 36864]


def test_keys_may_be_given_for_what_is_shown(invoke):
    found = json.loads(
        invoke("plugins", "show", "mixer.gqa", "--set", "num_kv_heads=1", "--set", "head_dim=4", "--json").stdout
    )
    assert found["traced_in"] == "tiny-gqa"
    assert {weight["name"]: weight["shape"] for weight in found["weights"]}["k_proj.weight"] == [4, 16]
    assert {state["name"]: state["shape"] for state in found["states"]}["attention.key"] == ["batch", 1, "capacity", 4]


def test_a_tied_head_owns_no_weight_and_an_untied_one_does(invoke):
    found = json.loads(invoke("plugins", "show", "head.lm", "--set", "bias=true", "--json").stdout)
    assert [(weight["name"], weight["shape"]) for weight in found["weights"]] == [
        ("lm_head.weight", [40, 16]),
        ("lm_head.bias", [40]),
    ]


class OpaqueFFN(FFN):
    """A torch module."""

    def define(self, g, x):
        return g.opaque("own", "torch.nn:Identity", (x,), width=x.width)


class Odd(FFN):
    """Nobody can guess its key."""

    word: str

    def rules(self):
        if self.word != "sesame":
            yield "word", "should be the right one"

    def define(self, g, x):
        return x


@pytest.fixture
def installed(monkeypatch):
    """Two kinds that are installed for the length of a test."""
    own = {("ffn", "own"): OpaqueFFN, ("ffn", "odd"): Odd}
    known = registry.installed()
    added = [registry.Installed(family, name, f"{__name__}:Thing", "mine", "1") for family, name in own]
    monkeypatch.setattr(registry, "installed", lambda: [*known, *added])
    with registry.temporary(own):
        yield


def test_a_target_that_lacks_a_lowering_is_said(invoke, installed):
    found = json.loads(invoke("plugins", "show", "ffn.own", "--json").stdout)
    assert found["traced_in"] == "tiny-own"
    assert found["targets"] == {
        "torch": {"lowered": True, "missing": []},
        "onnx": {"lowered": False, "missing": ["torch.nn.Identity"]},
    }
    assert "no lowering for torch.nn.Identity" in invoke("plugins", "show", "ffn.own").stdout


def test_a_kind_whose_keys_cannot_be_guessed_says_how_to_give_them(invoke, installed):
    text = invoke("plugins", "show", "ffn.odd").stdout
    assert "its keys can't be guessed; give them with --set KEY=VALUE" in text
    assert "  ops    none\n" in invoke("plugins", "show", "ffn.odd", "--set", "word=sesame").stdout
    wrong = invoke("plugins", "show", "ffn.odd", "--set", "word=wrong")
    assert wrong.exit_code == 2
    assert "should be the right one" in wrong.stderr


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mixer.kdaa", "unknown mixer 'kdaa'"),
        ("kda", "a kind is named as family.name (found 'kda')"),
        ("torch.linear", "a kind is named as family.name"),
        ("", "a kind is named as family.name"),
    ],
)
def test_a_kind_that_is_not_there_is_an_error_of_the_user(invoke, kind, message):
    result = invoke("plugins", "show", kind)
    assert result.exit_code == 2
    assert message in result.stderr
