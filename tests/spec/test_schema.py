from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import ValidationError

from archc import registry
from archc.errors import PluginError, SpecError
from archc.spec.kind import Kind
from archc.spec.load import load_spec, load_spec_with_warnings, loads_spec
from archc.spec.schema import Spec
from archc.spec.shipped import shipped_specs
from archc.spec.slots import Slot
from archc.spec.values import Scale


class Holder(Kind):
    """A kind with every sort of field."""

    family: ClassVar[str] = "head"
    whole: int = 1
    number: float = 1.0
    switch: bool = False
    pair: tuple[float, float] | None = None
    items: list[int] | None = None
    scale: Scale | None = None
    inner: Annotated[Any, Slot("scaling", default_kind="zstretch")] = None

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.whole > 10:
            yield "whole", f"should be at most 10 (found {self.whole})"


@pytest.mark.parametrize(
    "data",
    [
        {"whole": "32"},
        {"whole": True},
        {"whole": 1.0},
        {"number": "1"},
        {"number": True},
        {"number": float("inf")},
        {"switch": 1},
        {"switch": "true"},
        {"pair": [1, 2, 3]},
        {"pair": [1, "2"]},
        {"items": [1, True]},
        {"unknown": 1},
        {"unknown": None},
        {"scale": "sqrt(nowhere)"},
        {"scale": "sqrt(switch)"},
        {"inner": {"factor": "2"}},
        {"whole": 11},
    ],
)
def test_nothing_is_converted_and_nothing_unknown_is_taken(data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Holder.model_validate(data)


def test_an_integer_is_a_float_a_list_is_a_tuple_and_null_is_the_default() -> None:
    held = Holder.model_validate(
        {"number": 2, "pair": [1, 2], "whole": None, "inner": {"factor": 2}, "scale": "sqrt(whole)"}
    )
    assert (held.number, held.pair, held.whole, held.inner.factor) == (2.0, (1.0, 2.0), 1, 2.0)
    assert held.inner.kind_name == "zstretch"


def test_kinds_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Holder().whole = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_nested_errors_keep_their_whole_path() -> None:
    with pytest.raises(ValidationError) as caught:
        Slot("mixer").validate(
            {"kind": "zattend", "num_heads": 1, "head_dim": 1, "position": {"kind": "zorder", "scaling": "zstretch"}}
        )
    assert {error["loc"] for error in caught.value.errors()} == {
        ("position", "theta"),
        ("position", "scaling", "factor"),
    }


def test_a_slot_takes_an_instance_of_its_family_alone() -> None:
    order = Slot("position").validate({"kind": "zorder", "theta": 1.0})
    assert Slot("position").validate(order) is order
    with pytest.raises(Exception, match=r"should be a mixer \(found a position\)"):
        Slot("mixer").validate(order)


def test_a_plugin_that_is_no_kind_is_a_plugin_error() -> None:
    with registry.temporary({("head", "zbroken"): object()}), pytest.raises(PluginError, match="no subclass"):
        Slot("head").validate("zbroken")


def test_one_class_is_one_kind() -> None:
    with registry.temporary({("head", "zone"): Holder, ("head", "ztwo"): Holder}):
        assert Slot("head").validate("zone").kind_name == "zone"
        with pytest.raises(PluginError, match="one class is one kind"):
            Slot("head").validate("ztwo")


def test_values_are_kinds_and_defaults_are_filled(base: str) -> None:
    spec = loads_spec(base)
    assert spec.mixers["kda"].head_dim == 16
    assert (spec.dtype, spec.description, spec.max_position_embeddings) == ("bfloat16", "", None)
    assert (spec.embedding.kind_name, spec.head.kind_name, spec.cache.kind_name) == ("token", "lm", "full")
    assert [(plan.mixer, plan.ffn) for plan in spec.schedule()] == [
        ("kda", "dense"),
        ("kda", "moe"),
        ("kda", "moe"),
        ("mla", "moe"),
    ]
    assert spec.mtp_schedule() == ()


def test_mtp_takes_the_stacks_block(base: str) -> None:
    spec = loads_spec(base + "mtp: {num_layers: 2, mixer: mla, ffn: moe}\n")
    assert spec.mtp is not None
    assert spec.mtp.block is spec.stack.block
    assert [plan[:2] for plan in spec.mtp_schedule()] == [("mla", "moe")] * 2


def test_half_layers_and_layers_without_an_ffn(base: str) -> None:
    layers = base.replace("  mixer: kda*3 mla\n  ffn: dense moe*\n", "  layers: kda (moe mla)* mla+dense\n")
    plans = loads_spec(layers).schedule()
    assert [plan[:2] for plan in plans] == [("kda", None), (None, "moe"), ("mla", None), ("mla", "dense")]
    bare = base.replace("ffn: dense moe*", "ffn: none")
    assert {plan.ffn for plan in loads_spec(bare).schedule()} == {None}


def test_a_folded_pattern_and_a_list_are_patterns(base: str) -> None:
    folded = base.replace("mixer: kda*3 mla", "mixer: >-\n    kda*3\n    mla")
    listed = base.replace("mixer: kda*3 mla", "mixer: [kda, kda*2, mla]")
    assert loads_spec(folded).schedule() == loads_spec(listed).schedule() == loads_spec(base).schedule()


def test_a_spec_made_in_python_is_judged_the_same() -> None:
    data: dict[str, Any] = {
        "spec_version": 1,
        "name": "python",
        "tokenizer": {"kind": "external", "vocab_size": 10},
        "embedding": {"hidden_size": 8, "tie_word_embeddings": True},
        "position": "none",
        "norm": {"kind": "rms_norm", "eps": 1e-5},
        "mixers": {"a": {"kind": "zattend", "num_heads": 1, "head_dim": 8}},
        "stack": {"num_layers": 2, "block": "zsandwich", "mixer": "a", "ffn": "none"},
    }
    assert len(Spec.model_validate(data).schedule()) == 2
    with pytest.raises(ValidationError, match="3 layers, but the stack has 2"):
        Spec.model_validate({**data, "stack": {**data["stack"], "mixer": "a*3"}})


def test_what_is_neither_placed_nor_extended_gets_a_warning(base: str, tmp_path: Any) -> None:
    text = base.replace("kda*3 mla", "kda") + "\n"
    text = text.replace(
        "  mla:", "  common: {kind: zattend, num_heads: 2, head_dim: 8}\n  used: {extends: common}\n  mla:"
    )
    path = tmp_path / "spec.yaml"
    path.write_text(text.replace("mixer: kda", "mixer: kda*3 used"))
    _, warnings = load_spec_with_warnings(path)
    assert [(problem.severity, problem.path, problem.line, problem.message) for problem in warnings] == [
        ("warning", "mixers.mla", 11, "is neither placed nor extended")
    ]


def test_shipped_specs_are_found_by_name() -> None:
    assert "kimi-linear-48b-a3b" in shipped_specs()
    assert load_spec("tinyllama-1.1b").name == "tinyllama-1.1b"
    with pytest.raises(SpecError, match=r"no shipped spec of that name. Did you mean llama-3-8b\?"):
        load_spec("llama3-8b")


def test_every_shipped_spec_loads_without_a_warning() -> None:
    for name, path in shipped_specs().items():
        spec, warnings = load_spec_with_warnings(path)
        assert (spec.name, warnings) == (name, [])


def test_loading_a_spec_imports_nothing_heavy() -> None:
    code = "import sys; from archc.spec.load import load_spec; load_spec('llama-3-8b'); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "rich", "click", "jsonschema", "onnx"} & set(modules)
