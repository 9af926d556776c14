"""Plugins are found by metadata: doubled, broken and unknown ones are errors that name who is concerned."""

from __future__ import annotations

import json

import pytest

from archc import registry
from archc.errors import PluginError

MIXER = "[archc.mixer]\n{name} = {module}:Thing\n"
ERROR = (
    "from archc import registry\n"
    "from archc.errors import PluginError\n"
    "try:\n"
    "    registry.load({family!r}, {name!r})\n"
    "except PluginError as error:\n"
    "    print(error)\n"
)


def test_two_packages_with_one_name_are_refused_and_both_named(install, python):
    for package in ("first-thing", "second-thing"):
        module = package.replace("-", "_")
        install(package, MIXER.format(name="thing", module=module), **{module: "class Thing: pass\n"})
    found = python(ERROR.format(family="mixer", name="thing"))
    assert "mixer 'thing' is offered by " in found
    assert "first-thing (first_thing:Thing)" in found
    assert "second-thing (second_thing:Thing)" in found
    assert "uninstall one of them" in found


def test_a_package_that_takes_a_first_party_name_is_refused_too(install, python):
    install("other-attention", MIXER.format(name="gqa", module="other"), other="class Thing: pass\n")
    found = python(ERROR.format(family="mixer", name="gqa"))
    assert "archc-compiler (archc_plugins.mixer.gqa:GQA)" in found
    assert "other-attention (other:Thing)" in found


def test_a_doubled_name_breaks_only_what_uses_it(install, python):
    install("other-attention", MIXER.format(name="mla", module="other"), other="class Thing: pass\n")
    assert python("from archc import registry; print(registry.load('mixer', 'gqa').__name__)").strip() == "GQA"


def test_one_package_seen_twice_on_the_path_counts_once(install, python, tmp_path):
    install("thing", MIXER.format(name="thing", module="thing"), thing="class Thing: pass\n")
    code = (
        "import shutil, sys\n"
        f"shutil.copytree({str(tmp_path / 'thing-1.0.dist-info')!r}, {str(tmp_path / 'again' / 'thing-1.0.dist-info')!r})\n"
        f"sys.path.append({str(tmp_path / 'again')!r})\n"
        "from archc import registry\n"
        "print(registry.load('mixer', 'thing').__name__)\n"
    )
    assert python(code).strip() == "Thing"


def test_listing_imports_nothing(install, python):
    install("broken-thing", MIXER.format(name="broken", module="broken"), broken="raise RuntimeError('imported')\n")
    code = (
        "import json, sys\n"
        "from archc import registry\n"
        "found = [[p.family, p.name, p.package, p.target] for p in registry.installed()]\n"
        "loaded = [m for m in sys.modules if m.split('.')[0] in ('archc_plugins', 'archc_exporters', 'torch', 'broken')]\n"
        "print(json.dumps([found, loaded, registry.names('mixer')]))\n"
    )
    found, loaded, names = json.loads(python(code))
    assert loaded == []
    assert names == sorted(names)
    assert {"broken", "gated_deltanet", "gqa", "kda", "lightning", "mamba2", "mla"} <= set(names)
    assert ["mixer", "broken", "broken-thing", "broken:Thing"] in found
    assert ["mixer", "gqa", "archc-compiler", "archc_plugins.mixer.gqa:GQA"] in found
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_that_nobody_has\n", "No module named 'a_module_that_nobody_has'"),
        ("class Other: pass\n", "has no attribute 'Thing'"),
        ("raise RuntimeError('needs a licence')\n", "RuntimeError: needs a licence"),
        ("class Thing(:\n", "SyntaxError"),
        ("Thing = undefined\n", "NameError: name 'undefined' is not defined"),
    ],
    ids=["a missing module", "a missing class", "an error of its own", "no Python", "an undefined name"],
)
def test_a_broken_plugin_fails_when_it_is_used_and_says_who_it_is(install, python, source, reason):
    install("broken-thing", MIXER.format(name="thing", module="broken"), version="2.5", broken=source)
    found = python(ERROR.format(family="mixer", name="thing"))
    assert "mixer 'thing' of broken-thing 2.5 can't be loaded from broken:Thing" in found
    assert reason in found


def test_a_broken_plugin_is_no_concern_of_a_spec_that_does_not_name_it(install, python):
    install("broken-thing", MIXER.format(name="thing", module="broken"), broken="raise RuntimeError\n")
    code = "from archc.estimation.estimate import estimate; print(estimate('tiny-llama').parameters.total)"
    assert int(python(code)) > 0


def test_an_object_that_is_no_kind_is_refused_by_its_name(install, python):
    install("thing", MIXER.format(name="thing", module="thing"), thing="class Thing: pass\n")
    code = (
        "from archc.errors import PluginError\n"
        "from archc.spec.slots import Slot\n"
        "try:\n"
        "    Slot('mixer').load('thing')\n"
        "except PluginError as error:\n"
        "    print(error)\n"
    )
    assert "mixer 'thing' is no subclass of archc.spec.kind.Kind" in python(code)


def test_an_unknown_name_lists_what_is_installed_and_the_nearest():
    with pytest.raises(
        PluginError,
        match=r"unknown mixer 'gqaa'; installed: .*gated_deltanet, .*gqa, .*kda, .*mla.*\. Did you mean gqa\?",
    ):
        registry.load("mixer", "gqaa")
    with pytest.raises(PluginError, match=r"unknown family_of_nobody 'x'; installed: none\.$"):
        registry.load("family_of_nobody", "x")
    assert registry.find("mixer", "gqaa") is None
    assert registry.provider("mixer", "gqaa") is None


def test_a_temporary_plugin_is_registered_inside_the_block_only():
    thing = object()
    with registry.temporary({("mixer", "thing"): thing}):
        assert registry.load("mixer", "thing") is thing
        assert "thing" in registry.names("mixer")
        with registry.temporary({("ffn", "thing"): thing}):
            assert registry.find("ffn", "thing") is thing
        assert registry.find("ffn", "thing") is None
        assert registry.find("mixer", "thing") is thing
    assert registry.find("mixer", "thing") is None
    assert "thing" not in registry.names("mixer")


def test_a_temporary_plugin_is_unregistered_after_an_error():
    with pytest.raises(ZeroDivisionError), registry.temporary({("mixer", "thing"): object()}):
        raise ZeroDivisionError
    assert registry.find("mixer", "thing") is None


def test_a_temporary_plugin_hides_nothing():
    with (
        pytest.raises(PluginError, match="mixer 'gqa' is registered already"),
        registry.temporary({("mixer", "gqa"): 0}),
    ):
        pass
    with registry.temporary({("mixer", "thing"): 1}):
        with pytest.raises(PluginError, match="mixer 'thing'"), registry.temporary({("mixer", "thing"): 2}):
            pass
        assert registry.load("mixer", "thing") == 1


def test_the_first_party_comes_through_the_same_door():
    assert registry.provider("mixer", "gqa") == registry.provider("torch", "linear")
    package, version = registry.provider("mixer", "gqa") or ("", "")
    assert package == "archc-compiler"
    assert version
