"""Specs whose ids anybody can work out, and data for them."""

import json

from archc.generation.text import Text
from archc.spec.load import load_spec
from archc.training.data.opening import open_data
from archc.training.data.vocabulary import vocabularies_of
from archc.training.options import TrainOptions

EOS = 256
CAUSAL = load_spec("tiny-llama", [f"tokenizer={{kind: bytes, eos_token_id: {EOS}}}", "stack.num_layers=1"])
"""Byte b has the id b, and 256 ends a document."""
PLAIN = load_spec("tiny-llama", ["tokenizer={kind: bytes}", "stack.num_layers=1"])
"""Bytes and nothing else."""
PAIRED = load_spec("tiny-t5", ["tokenizer={kind: bytes, pad_token_id: 0, eos_token_id: 1}"])
"""Byte b has the id b + 2; 0 pads and starts, 1 ends."""
MASK = 257
MASKED = load_spec(
    "bert-base-uncased",
    [
        "head={kind: mlm, activation: gelu}",
        "embedding.tie_word_embeddings=true",
        "encoder.num_layers=1",
        "tokenizer={kind: external, vocab_size: 300, eos_token_id: 256}",
    ],
)
"""As CAUSAL, with a mask behind."""


def vocabularies(spec, tokenizer=None):
    """By the spec's own tokenizer unless another is given."""
    return vocabularies_of(spec, Text(tokenizer or spec.tokenizer.load(".")))


def masking_tokenizer():
    made = CAUSAL.tokenizer.load(".")
    made.add_special_tokens(["[MASK]"])
    assert made.token_to_id("[MASK]") == MASK
    return made


def data(folder, spec, texts, *, tokenizer=None, **more):
    """Texts, a file each in the order given, or pairs in one file, as tokens."""
    (folder / "texts").mkdir()
    for number, text in enumerate(texts):
        if isinstance(text, str):
            (folder / "texts" / f"{number:05d}.txt").write_bytes(text.encode())
        else:
            with (folder / "texts" / "pairs.jsonl").open("a") as file:
                file.write(json.dumps({"source": text[0], "target": text[1]}) + "\n")
    return open_data(folder / "texts", vocabularies=vocabularies(spec, tokenizer), cache=folder / "cache", **more)


def ended(text):
    """What CAUSAL makes of a document."""
    return [*text.encode(), EOS]


def options(**more):
    return TrainOptions(**{"steps": 10, "seq_len": 8, "batch_size": 4, **more})
