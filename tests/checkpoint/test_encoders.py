"""Encoders out of transformers: every tensor is used, outputs are equal however rows are padded, and every bit comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

import archc  # noqa: E402
from archc.checkpoint.convert import to_archc, to_hf  # noqa: E402
from archc.checkpoint.importing import import_data  # noqa: E402
from archc.checkpoint.opening import import_folder  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from tests.checkpoint.conftest import same_bits  # noqa: E402
from tests.checkpoint.encoders import BERT, ENCODERS, LENGTHS, TOKENS, Judge, judge_of, largest, saved  # noqa: E402

pytestmark = pytest.mark.torch

TEXTS = [name for name in ENCODERS if "vit" not in name]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory):
    """Case -> (its judge, transformers' folder, archc's folder, the model that is built from it); made once."""
    made: dict[str, Any] = {}

    def get(name: str):
        if name not in made:
            place = tmp_path_factory.mktemp("encoder")
            folder = saved(name, place / "theirs")
            imported = import_folder(folder)
            to_archc(folder, place / "ours", imported)
            model = archc.build(imported.spec, device="cpu", dtype="float32")
            made[name] = judge_of(name), folder, place / "ours", archc.load_weights(model, place / "ours").eval()
        return made[name]

    return get


def run(model: Any, *inputs: Any, **more: Any) -> list[Any]:
    with torch.no_grad():
        found = model(*inputs, **{name: value for name, value in more.items() if value is not None})
    return [found] if isinstance(found, torch.Tensor) else list(found)


def assert_same(got: list[Any], want: list[Any], tolerance: float) -> None:
    assert [each.shape for each in got] == [each.shape for each in want]
    limit = tolerance * largest(want)
    for mine, theirs in zip(got, want, strict=True):
        assert float((mine - theirs).abs().max()) < limit


@pytest.mark.parametrize("name", ENCODERS)
def test_outputs_are_those_of_transformers(converted, name: str):
    judge, _, _, model = converted(name)
    want = judge.forward(judge.main, token_type_ids=judge.types)
    assert_same(run(model, judge.main, token_type_ids=judge.types), want, judge.encoder.tolerance)


def padded(judge: Judge, side: str) -> tuple[Any, Any, Any]:
    """(ids, their types, the mask) of rows of ``LENGTHS``, the padding under the id that transformers looks for."""
    ids, types = judge.main.clone(), None if judge.types is None else judge.types.clone()
    mask = torch.ones_like(ids)
    for row, length in enumerate(LENGTHS):
        ids[row, length:], mask[row, length:] = judge.encoder.pad, 0
        if side == "left":
            for tensor in (ids, mask, *(() if types is None else (types,))):
                tensor[row] = tensor[row].roll(TOKENS - length)
    return ids, types, mask


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", TEXTS)
def test_padding_changes_nothing_of_what_transformers_gives_each_row_alone(converted, name: str, side: str):
    if "block_size" in judge_of(name).encoder.config and "all with all" not in name:
        pytest.skip("blocks are counted over columns, padding or not, there as here")
    judge, _, _, model = converted(name)
    ids, types, mask = padded(judge, side)
    got = run(model, ids, attention_mask=mask, token_type_ids=types)
    for row, length in enumerate(LENGTHS):
        one = slice(row, row + 1)
        own = None if judge.types is None else judge.types[one, :length]
        want = judge.forward(judge.main[one, :length], token_type_ids=own)
        start = TOKENS - length if side == "left" else 0
        mine = [each[one, start : start + length] if each.dim() == 3 else each[one] for each in got]
        assert_same(mine, want, judge.encoder.tolerance)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", TEXTS)
def test_padded_batches_give_the_outputs_of_transformers(converted, name: str, side: str):
    judge, _, _, model = converted(name)
    if side == "left" and (judge.encoder.by_row or judge.encoder.config.get("rotary_value")):
        pytest.skip("transformers reads the first column there, and turns values by columns")
    ids, types, mask = padded(judge, side)
    # transformers counts the columns, padding or not, unless it is told; RoBERTa counts ids that are not the padding's.
    by_column = name.split()[0].strip(",") in ("bert", "big_bird") or "absolute" in name
    positions = (mask.cumsum(1) - 1).clamp(min=0) if by_column else None
    want = judge.forward(ids, attention_mask=mask, token_type_ids=types, position_ids=positions)
    got = run(model, ids, attention_mask=mask, token_type_ids=types)
    if side == "left":
        got, want = ([each for each in one if each.dim() == 3] for one in (got, want))
    keep = mask.bool()
    got, want = ([each[keep] if each.dim() == 3 else each for each in one] for one in (got, want))
    assert_same(got, want, judge.encoder.tolerance)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_round_trip_keeps_every_bit_and_the_configuration(converted, name: str, tmp_path: Path):
    _, folder, ours, _ = converted(name)
    to_hf(ours, tmp_path / "back")
    assert same_bits(folder, tmp_path / "back")
    configs = [json.loads((place / "config.json").read_text("utf-8")) for place in (folder, tmp_path / "back")]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("pairs", ["needed", "dense"])
def test_the_readable_twins_give_the_same_outputs(converted, name: str, pairs: str):
    if name not in ("bert", "roformer that turns values", "modernbert masked", "vit"):
        pytest.skip("the same layers as another case")
    judge, folder, ours, _ = converted(name)
    twin = archc.build(import_folder(folder).spec, device="cpu", dtype="float32", twin=pairs)
    archc.load_weights(twin, ours)
    want = judge.forward(judge.main, token_type_ids=judge.types)
    assert_same(run(twin, judge.main, token_type_ids=judge.types), want, judge.encoder.tolerance)


@pytest.mark.parametrize("name", ENCODERS)
def test_every_weight_moves_the_outputs_but_biases_that_the_softmax_cancels(converted, name: str):
    judge, _, _, model = converted(name)
    before = run(model, judge.main, token_type_ids=judge.types)
    unmoved = []
    draw = torch.Generator().manual_seed(7)
    for key, weight in model.named_parameters():
        if key.startswith("layers.") and not key.startswith("layers.2"):
            continue
        with torch.no_grad():
            kept = weight.clone()
            weight.add_(0.5 * torch.randn(weight.shape, generator=draw))
            after = run(model, judge.main, token_type_ids=judge.types)
            weight.copy_(kept)
        change = max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True))
        if change < 10 * judge.encoder.tolerance:
            unmoved.append(key)
    cancelled = ["layers.2.mixer.k_proj.bias"]
    if name.startswith("longformer"):
        cancelled.append("layers.2.mixer.global_k_proj.bias")
    if name == "longformer texts":
        # Of the last layer only the first token is read, and that looks through projections of its own.
        cancelled[:1] = [f"layers.2.mixer.{part}_proj.{kind}" for part in "qkv" for kind in ("weight", "bias")]
    assert unmoved in ([], cancelled)


def test_norms_of_gamma_and_beta_are_read_too(tmp_path: Path):
    judge, folder = judge_of("bert masked"), saved("bert masked", tmp_path / "in")
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for key, tensor in load_file(folder / "model.safetensors").items()
    }
    assert any(key.endswith("gamma") for key in old)
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    imported = import_folder(folder)
    to_archc(folder, tmp_path / "out", imported)
    model = archc.load_weights(archc.build(imported.spec, device="cpu", dtype="float32"), tmp_path / "out")
    assert_same(run(model, judge.main), judge.forward(judge.main), 5e-5)
    to_hf(tmp_path / "out", tmp_path / "back")
    assert same_bits(folder, tmp_path / "back")


@pytest.mark.parametrize("has_two", [False, True])
def test_a_tied_head_that_the_tensors_deny_has_the_bias_that_transformers_reads(tmp_path: Path, has_two: bool):
    import transformers

    judge, folder = judge_of("bert masked"), saved("bert masked", tmp_path / "in")
    tensors = load_file(folder / "model.safetensors")
    draw = torch.Generator().manual_seed(3)
    tensors["cls.predictions.decoder.weight"] = torch.randn(90, 48, generator=draw)
    if has_two:
        tensors["cls.predictions.decoder.bias"] = torch.randn(90, generator=draw)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        want = [transformers.BertForMaskedLM.from_pretrained(folder).eval()(judge.main).logits]
    imported = import_folder(folder)
    to_archc(folder, tmp_path / "out", imported)
    model = archc.load_weights(archc.build(imported.spec, device="cpu", dtype="float32"), tmp_path / "out")
    assert_same(run(model, judge.main), want, 5e-5)
    to_hf(tmp_path / "out", tmp_path / "back")
    assert same_bits(folder, tmp_path / "back")


def test_the_pooler_beside_a_head_that_does_not_read_it_is_left_out_by_name_only(tmp_path: Path):
    folder = saved("bert masked", tmp_path / "in")
    tensors = load_file(folder / "model.safetensors")
    tensors |= {"bert.pooler.dense.weight": torch.ones(48, 48), "bert.pooler.dense.bias": torch.ones(48)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArchcError, match=r"2 of them are the pooler.*--allow-unused '\*pooler.dense.\*'"):
        to_archc(folder, tmp_path / "out", import_folder(folder))
    done = to_archc(folder, tmp_path / "out", import_folder(folder), allow_unused=["*pooler.dense.*"])
    assert sorted(done.left_out) == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "asks for positions on the scores"),
        ({"add_cross_attention": True}, "asks for attention to another encoder"),
        ({"architectures": ["BertForMultipleChoice"]}, "has a head that is not known"),
        ({"no_such_key": 1}, "is not known to this family"),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_name(change: dict[str, Any], message: str):
    with pytest.raises(ArchcError, match=message):
        import_data({"model_type": "bert", **BERT, **change}, name="bert")


@pytest.mark.parametrize("model_type", ["bert", "roberta", "roformer", "modernbert", "vit"])
def test_without_a_named_class_it_is_the_model_without_a_head(model_type: str):
    spec = import_data({"model_type": model_type}, name=model_type).spec
    assert spec.head.kind_name in ("pooler", "none")


def test_a_bert_that_is_a_decoder_sees_what_came_before_and_goes_on_by_a_cache(tmp_path: Path):
    from tests.checkpoint.encoders import Encoder, Judge

    for config_class, model_class in (("BertConfig", "BertLMHeadModel"), ("RoFormerConfig", "RoFormerForCausalLM")):
        judge = Judge(Encoder(config_class=config_class, model_class=model_class, config={**BERT, "is_decoder": True}))
        folder = tmp_path / model_class
        judge.model.save_pretrained(folder)
        imported = import_folder(folder)
        model = archc.load_weights(archc.build(imported.spec, device="cpu", dtype="float32"), folder).eval()
        (want,) = judge.forward(judge.main)
        assert_same(run(model, judge.main), [want], 5e-5)
        cache = archc.new_cache(model, batch=len(judge.main), max_model_len=TOKENS)
        pieces = [(0, 12), *((at, at + 1) for at in range(12, TOKENS))]
        with torch.no_grad():
            parts = [model(judge.main[:, a:b], archc.Step.at(a, b - a), cache) for a, b in pieces]
        assert_same([torch.cat(parts, 1)], [want], 5e-5)
