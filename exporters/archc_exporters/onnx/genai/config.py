"""``genai_config.json``: how onnxruntime-genai finds a file's inputs and outputs, and when it stops."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archc.errors import ArchcError
from archc.graph.graph import Graph
from archc_exporters.onnx.genai.support import attention_nodes, require_runnable
from archc_exporters.onnx.target import Target
from archc_exporters.onnx.tokenizer_files import CONFIG, TOKENIZER, TokenizerFiles
from archc_exporters.onnx.write import MODEL

GENAI_CONFIG = "genai_config.json"


def special_ids(roles: Mapping[str, list[int]]) -> dict[str, int | list[int]]:
    """The ids that its runtime needs: of the end of a text, several in a list, of padding, of the beginning where known.

    Raises:
        ArchcError: nothing says which id ends a text.
    """
    ends = roles.get("eos", [])
    if not ends:
        raise ArchcError(
            "genai_config.json needs the id that ends a text: state tokenizer.eos_token_id in the spec "
            "(--set tokenizer.eos_token_id=ID), or hand over a tokenizer that names it (--tokenizer DIR)"
        )
    found: dict[str, int | list[int]] = {
        "eos_token_id": ends if len(ends) > 1 else ends[0],
        "pad_token_id": (roles.get("pad") or ends)[0],
    }
    if roles.get("bos"):
        found["bos_token_id"] = roles["bos"][0]
    return found


def genai_config(
    graph: Graph, target: Target, *, max_model_len: int, special: Mapping[str, int | list[int]]
) -> dict[str, Any]:
    """The configuration of a file with the inputs of ``inputs.lengths``.

    Past and present share a buffer of ``max_length`` rows, which callers should set to what they need: it is allocated
    whole. The type is the one that runs any decoder by its inputs and outputs, so no model's name is needed.
    """
    heads = [op for _, _, op in attention_nodes(graph)]
    options = [] if target.provider == "cpu" else [{target.provider: {}}]
    decoder: dict[str, Any] = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": options},
        "filename": MODEL,
        "num_hidden_layers": graph.num_layers,
        # Layers that differ are found by the shapes of the file's inputs.
        "num_attention_heads": max((op.num_heads for op in heads), default=0),
        "num_key_value_heads": heads[0].num_kv_heads if heads else 0,
        "head_size": heads[0].key_dim if heads else 0,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "position_ids": "position_ids",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
            "past_conv_names": "past_key_values.%d.conv_state",
            "past_recurrent_names": "past_key_values.%d.recurrent_state",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
            "present_conv_names": "present.%d.conv_state",
            "present_recurrent_names": "present.%d.recurrent_state",
        },
    }
    if target.sliding_window_cache:
        decoder |= _sliding_window(graph)
    return {
        "model": {
            "type": "decoder",
            "vocab_size": graph.vocab_size,
            "context_length": max_model_len,
            **special,
            "decoder": decoder,
        },
        "search": {"max_length": max_model_len, "past_present_share_buffer": True, "do_sample": False},
    }


def _sliding_window(graph: Graph) -> dict[str, Any]:
    """Which layers have a rolling cache of a window's rows; its runtime allocates one size for all of them.

    Raises:
        ArchcError: windows differ in length.
    """
    windows = {scope: op.window for scope, _, op in attention_nodes(graph) if op.window is not None}
    sizes = set(windows.values())
    if len(sizes) > 1:
        raise ArchcError(
            f"{graph.name}: windows of {', '.join(map(str, sorted(filter(None, sizes))))} tokens can't share one size of rolling "
            "cache in onnxruntime-genai; leave --sliding-window-cache out"
        )
    if not windows:
        return {}
    return {
        "sliding_window": {
            "window_size": sizes.pop(),
            "slide_key_value_cache": False,
            "slide_inputs": False,
            "layers": [int(part) for scope in windows for part in scope.split(".") if part.isdigit()],
        }
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GenaiFiles:
    """What is written beside the model: file name -> contents, and what a user of the folder should know."""

    files: Mapping[str, bytes]
    notes: tuple[str, ...]


def genai_files(graph: Graph, target: Target, *, max_model_len: int, tokenizer: TokenizerFiles | None) -> GenaiFiles:
    """``genai_config.json``, and a ``tokenizer_config.json`` where the tokenizer lacks one.

    Raises:
        ArchcError: the runtime can't hold the architecture, no id ends a text, or windows differ where they should roll.
    """
    require_runnable(graph, target)
    roles = tokenizer.special_token_ids if tokenizer else {}
    config = genai_config(graph, target, max_model_len=max_model_len, special=special_ids(roles))
    files = {GENAI_CONFIG: _encoded(config)}
    written = tokenizer.files if tokenizer else {}
    if TOKENIZER in written and CONFIG not in written:
        # Its tokenizer opens this file whatever it says; the class is the one that any tokenizer.json loads as.
        files[CONFIG] = _encoded({"tokenizer_class": "PreTrainedTokenizerFast"})
    notes = ["inputs are onnxruntime-genai's: attention_mask and position_ids, rows padded on the right"]
    if not roles.get("pad"):
        notes.append("no tokenizer.pad_token_id is stated: batches are padded with the id that ends a text")
    if TOKENIZER not in written:
        notes.append("no tokenizer is written: onnxruntime-genai generates from ids")
    return GenaiFiles(files=files, notes=tuple(notes))


def _encoded(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=1) + "\n").encode()
