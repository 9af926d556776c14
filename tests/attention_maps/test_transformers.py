"""Maps are the attentions that transformers gives out of the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import archc  # noqa: E402
from archc.attention_maps.maps import attention_maps  # noqa: E402
from archc.checkpoint.convert import to_archc  # noqa: E402
from archc.checkpoint.opening import import_folder  # noqa: E402

pytestmark = pytest.mark.torch

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama with groups": ("LlamaForCausalLM", "LlamaConfig", {**SMALL, "num_key_value_heads": 2}),
    "a window": (
        "MistralForCausalLM",
        "MistralConfig",
        {**SMALL, "num_key_value_heads": 2, "sliding_window": 4, "head_dim": 8},
    ),
    "bert": ("BertForMaskedLM", "BertConfig", SMALL),
    "slopes": ("BloomForCausalLM", "BloomConfig", {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 50,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_maps_are_those_of_transformers(name: str, tmp_path: Path):
    kind, config, keys = MODELS[name]
    torch.manual_seed(0)
    theirs = getattr(transformers, kind)._from_config(
        getattr(transformers, config)(**keys), attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    theirs = theirs.eval()
    theirs.save_pretrained(tmp_path)
    imported = import_folder(tmp_path)
    to_archc(tmp_path, tmp_path / "ours", imported)
    ours = archc.load_weights(archc.build(imported.spec, device="cpu", dtype="float32"), tmp_path / "ours").eval()
    ids, source = torch.randint(0, 50, (1, 9)), torch.randint(0, 50, (1, 7))
    with torch.no_grad():
        if name == "t5":
            found = theirs(input_ids=source, decoder_input_ids=ids, output_attentions=True)
            decoder = [
                layer for pair in zip(found.decoder_attentions, found.cross_attentions, strict=True) for layer in pair
            ]
            wanted = [*found.encoder_attentions, *decoder]
            maps = attention_maps(ours, ids, encoder_input_ids=source, keeps_heads=True)
        else:
            wanted = list(theirs(ids, output_attentions=True).attentions)
            maps = attention_maps(ours, ids, keeps_heads=True)
    assert len(maps) == len(wanted)
    for mine, attention in zip(maps, wanted, strict=True):
        assert mine.weights is not None
        assert mine.weights.shape == attention[0].shape
        assert (mine.weights - attention[0]).abs().max() < 2e-5, mine.title
        assert attention[0].std() > 0.01, "a flat map would agree with anything"
