"""T5 in transformers and here: the same logits however the text is fed, every tensor used, every bit back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

from safetensors.torch import load_file, save_file  # noqa: E402

import archc  # noqa: E402
from archc.checkpoint.convert import to_archc, to_hf  # noqa: E402
from archc.checkpoint.importing import import_data  # noqa: E402
from archc.checkpoint.opening import import_folder  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from tests.checkpoint.conftest import same_bits  # noqa: E402
from tests.parity.oracle import _randomise  # noqa: E402

pytestmark = pytest.mark.torch

TINY = {
    "vocab_size": 96,
    "d_model": 48,
    "d_kv": 12,
    "d_ff": 80,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "layer_norm_epsilon": 0.01,
    "decoder_start_token_id": 0,
}
TOLERANCE = 5e-5
LENGTHS = (14, 9)
"""Tokens of the two texts that the encoder reads."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A model of transformers, the folder that holds it, two texts for each side, and logits of the decoder's."""

    model: Any
    folder: Path
    source: Any
    ids: Any

    @property
    def mask(self) -> Any:
        return (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)).long()

    def logits(self, mask: Any, source: Any = None) -> Any:
        source = self.source if source is None else source
        with torch.no_grad():
            return self.model(input_ids=source, attention_mask=mask, decoder_input_ids=self.ids).logits


def as_published(folder: Path, *, tied: bool | None) -> None:
    """The configuration in the older spelling: nothing that newer versions write apart."""
    file = folder / "config.json"
    data = json.loads(file.read_text("utf-8"))
    for name in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "tie_word_embeddings", "is_decoder"):
        del data[name]
    file.write_text(json.dumps(data | ({} if tied is None else {"tie_word_embeddings": tied})), "utf-8")


def with_a_head(folder: Path) -> None:
    draw = torch.Generator().manual_seed(9)
    tensors = load_file(folder / "model.safetensors")
    head = {"lm_head.weight": torch.randn(96, 48, generator=draw) / 7}
    save_file({**tensors, **head}, folder / "model.safetensors", metadata={"format": "pt"})


FORMS: dict[str, tuple[dict[str, Any], Callable[[Path], None]]] = {
    "1.0 as transformers saves it": ({"feed_forward_proj": "relu"}, lambda folder: None),
    "1.0 as published": ({"feed_forward_proj": "relu"}, lambda folder: as_published(folder, tied=None)),
    "1.1 without a head": ({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, lambda folder: None),
    "1.1 as published": (
        {"feed_forward_proj": "gated-gelu"},
        lambda folder: (as_published(folder, tied=False), with_a_head(folder))[0],
    ),
    "1.0 with a head": ({"feed_forward_proj": "relu"}, with_a_head),
    "a gate of silu": ({"feed_forward_proj": "gated-silu", "num_decoder_layers": None}, lambda folder: None),
}


@pytest.fixture(scope="module", params=FORMS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    changes, change = FORMS[request.param]
    folder = tmp_path_factory.mktemp("t5")
    transformers.logging.set_verbosity_error()
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**{**TINY, **changes}))
    _randomise(model, 3)
    model.save_pretrained(folder)
    change(folder)
    draw = torch.Generator().manual_seed(4)
    source, ids = (torch.randint(2, 96, (2, tokens), generator=draw) for tokens in (max(LENGTHS), 12))
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    return Saved(model, folder, source, ids)


@pytest.fixture(scope="module")
def ours(saved: Saved) -> Any:
    spec = import_folder(saved.folder).spec
    return archc.load_weights(archc.build(spec, device="cpu", dtype="float32"), saved.folder).eval()


def assert_same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)


def test_logits_are_those_of_transformers_whole_and_with_a_padded_source(saved: Saved, ours: Any) -> None:
    with torch.no_grad():
        assert_same(ours(saved.ids, encoder_input_ids=saved.source), saved.logits(None))
        expected = saved.logits(saved.mask)
        given = {"encoder_input_ids": saved.source, "encoder_attention_mask": saved.mask}
        assert_same(ours(saved.ids, **given), expected)
        # To the left of a text, padding is as little to see.
        turned = torch.stack([row.roll(max(LENGTHS) - n) for row, n in zip(saved.source, LENGTHS, strict=True)])
        left = saved.mask.flip(1)
        assert_same(saved.logits(left, turned), expected)
        assert_same(ours(saved.ids, encoder_input_ids=turned, encoder_attention_mask=left), expected)


@pytest.mark.parametrize("pieces", [[12], [1] * 12, [5, 1, 1, 4, 1]], ids=str)
def test_logits_are_the_same_when_the_decoder_goes_on_over_a_cache(saved: Saved, ours: Any, pieces: list[int]) -> None:
    cache = archc.new_cache(ours, batch=2, max_model_len=12, source_len=max(LENGTHS))
    past, found = 0, []
    with torch.no_grad():
        for length in pieces:
            given = {} if past else {"encoder_input_ids": saved.source}
            step = archc.Step.at(past, length)
            piece = saved.ids[:, past : past + length]
            found.append(ours(piece, step, cache, encoder_attention_mask=saved.mask, **given))
            past += length
    assert_same(torch.cat(found, 1), saved.logits(saved.mask))


def test_either_half_of_any_weight_moves_the_logits(saved: Saved, ours: Any) -> None:
    draw = torch.Generator().manual_seed(8)
    unmoved: dict[str, float] = {}
    given = {"encoder_input_ids": saved.source, "encoder_attention_mask": saved.mask}
    with torch.no_grad():
        before = ours(saved.ids, **given)
        for name, weight in ours.named_parameters():
            kept, middle = weight.detach().clone(), weight.shape[0] // 2
            for half in (slice(None, middle), slice(middle, None)):
                weight[half] += 0.5 * torch.randn(weight[half].shape, generator=draw)
                change = float((ours(saved.ids, **given) - before).abs().max())
                weight.copy_(kept)
                if not change > 10 * TOLERANCE:
                    unmoved[f"{name}[{half.start or ''}:{half.stop or ''}]"] = change
    assert not unmoved


def test_a_round_trip_keeps_every_bit_and_the_configuration(saved: Saved, tmp_path: Path) -> None:
    to_archc(saved.folder, tmp_path / "out", import_folder(saved.folder))
    to_hf(tmp_path / "out", tmp_path / "back")
    assert same_bits(saved.folder, tmp_path / "back")
    before, after = (
        json.loads((place / "config.json").read_text("utf-8")) for place in (saved.folder, tmp_path / "back")
    )
    assert before == after


def test_what_a_file_says_more_than_once_is_read_once_and_written_as_often(saved: Saved, tmp_path: Path) -> None:
    tensors = load_file(saved.folder / "model.safetensors")
    table, unused = tensors["shared.weight"], torch.ones(8, 3)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_bytes((saved.folder / "config.json").read_bytes())

    def write(**more: Any) -> None:
        copies = {f"{side}.embed_tokens.weight": more.get(side, table.clone()) for side in ("encoder", "decoder")}
        dead = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": unused}
        save_file({**tensors, **copies, **dead}, tmp_path / "old" / "model.safetensors", metadata={"format": "pt"})

    write()
    imported = import_folder(tmp_path / "old")
    assert to_archc(tmp_path / "old", tmp_path / "out", imported).left_out == (
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    )
    to_hf(tmp_path / "out", tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert all(back[f"{side}.embed_tokens.weight"].equal(table) for side in ("encoder", "decoder"))
    write(decoder=table + 1)
    with pytest.raises(ArchcError, match=r"decoder\.embed_tokens\.weight differs from shared\.weight"):
        to_archc(tmp_path / "old", tmp_path / "other", imported)


def test_the_spec_ties_scales_and_gates_as_transformers_computes(saved: Saved) -> None:
    imported, config = import_folder(saved.folder), saved.model.config
    table, head = saved.model.shared.weight, saved.model.lm_head.weight
    assert imported.spec.embedding.tie_word_embeddings == table.equal(head)
    assert (imported.spec.head.logit_scale.resolve({"hidden_size": 48}) != 1) == config.scale_decoder_outputs
    assert any("gate_proj" in name for name in imported.graph.params()) == config.is_gated_act
    assert imported.spec.encoder.num_layers == 2
    assert imported.spec.decoder.num_layers == config.num_decoder_layers


def test_an_encoder_alone_gives_the_hidden_states_of_transformers(tmp_path: Path) -> None:
    model = transformers.T5EncoderModel(transformers.T5Config(**TINY, feed_forward_proj="relu")).eval()
    _randomise(model, 6)
    model.save_pretrained(tmp_path)
    spec = import_folder(tmp_path).spec
    assert spec.decoder is None
    ours = archc.load_weights(archc.build(spec, device="cpu", dtype="float32"), tmp_path).eval()
    ids = torch.randint(2, 96, (2, 14), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(14) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
        found = ours(ids, attention_mask=mask)
    assert_same(found[mask.bool()], expected[mask.bool()])


PUBLISHED = {
    "model_type": "t5",
    "vocab_size": 32128,
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 3072,
    "num_layers": 12,
    "num_heads": 12,
    "relative_attention_num_buckets": 32,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "use_cache": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "n_positions": 512,
    "architectures": ["T5ForConditionalGeneration"],
    "output_past": True,
    "task_specific_params": {"summarization": {"max_length": 200}},
}


def test_the_published_base_configuration_is_the_shipped_spec() -> None:
    imported = import_data(PUBLISHED, name="t5-base", dtype="bfloat16")
    # A configuration does not say how many rows of the table are ids.
    ours = archc.load_spec("t5-base", ["tokenizer.vocab_size=32128", "dtype=bfloat16"])
    from archc.graph.lockfile import to_text

    assert to_text(imported.graph) == to_text(archc.expand(ours))
    assert archc.estimate(imported.graph).parameters.total == 222_903_552
    assert imported.spec.tokenizer.pad_token_id == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"is_decoder": True}, "is_decoder: True asks for a decoder without an encoder"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder: False asks for one stack"),
        ({"feed_forward_proj": "gated-relu"}, "feed_forward_proj: 'gated-relu' is no activation of a gate"),
        ({"feed_forward_proj": "swish9"}, "'swish9' is no activation that is known"),
        ({"num_decoder_layers": 0}, "num_decoder_layers: 0 is no number of layers"),
        ({"sliding_window": 8}, "sliding_window: 8 is not known to this family"),
    ],
    ids=str,
)
def test_what_can_not_be_honoured_is_refused_by_its_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ArchcError, match=said):
        import_data({**PUBLISHED, **changes}, name="t5")


def test_another_id_that_the_decoder_starts_from_is_that_which_begins_a_text() -> None:
    assert import_data(PUBLISHED, name="t5").spec.tokenizer.bos_token_id is None
    assert import_data({**PUBLISHED, "decoder_start_token_id": 7}, name="t5").spec.tokenizer.bos_token_id == 7
