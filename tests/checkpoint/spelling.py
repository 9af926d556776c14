"""What older spellings are tested with: a file as it was published, and the graph that it gives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from archc.checkpoint.importing import import_data
from archc.errors import ArchcError
from archc.graph.lockfile import to_text

LLAMA = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0",
    "use_cache": True,
}


@dataclass(frozen=True, slots=True)
class Old:
    """``config`` is a file in an older spelling; without any one of the keys ``told`` it is another model."""

    config_class: str
    config: dict[str, Any]
    told: tuple[str, ...]


def graph_of(config: dict[str, Any]) -> str:
    return to_text(import_data(config, name="spelling").graph)


def says_what_transformers_reads(old: Old) -> None:
    transformers = pytest.importorskip("transformers")
    # What json makes of it is what a file would hold.
    plain = {key: value for key, value in old.config.items() if key != "model_type"}
    read = getattr(transformers, old.config_class)(**json.loads(json.dumps(plain)))
    today = json.loads(read.to_json_string(use_diff=False))
    assert graph_of(old.config) == graph_of(today)


def each_key_is_heard(old: Old) -> None:
    known = graph_of(old.config)
    for key in old.told:
        try:
            other = graph_of({name: value for name, value in old.config.items() if name != key})
        except ArchcError:
            # Without it the rest asks for what can't be honoured.
            continue
        assert other != known, key
