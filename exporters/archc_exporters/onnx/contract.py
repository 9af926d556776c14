"""``archc.json``: what a program needs to know in order to run a folder, and what it was made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from archc._version import __version__
from archc.graph.graph import CAPACITY_MULTIPLE, Graph
from archc.spec.emit import emit
from archc.spec.resolved import Resolved
from archc_exporters.onnx.limits import takes_batched_chunks
from archc_exporters.onnx.report import ExportReport
from archc_exporters.onnx.states import ENCODER_FILE, PAST, present_name
from archc_exporters.onnx.tokenizer_files import SOURCE_TOKENIZER, TOKENIZER, TokenizerFiles

CONTRACT, SPEC = "archc.json", "spec.yaml"
FORMAT = 1
"""Raised when a program that reads the old ``archc.json`` would misread the new one."""


def write_contract(
    stage: Path,
    model: ir.Model,
    graph: Graph,
    report: ExportReport,
    *,
    target: Mapping[str, Any],
    spec: Resolved | None = None,
    tokenizer: TokenizerFiles | None = None,
    encoder: ir.Model | None = None,
) -> None:
    """Write ``archc.json`` into a folder that holds the model, and beside it ``spec.yaml`` and the tokenizer where known.

    ``target`` is plain data; ``report`` lists the files under the names that they have in the folder. ``encoder`` is the
    model in ``encoder.onnx``.
    """
    if spec is not None:
        (stage / SPEC).write_text(_spec_text(spec, tokenizer), encoding="utf-8")
    for name, content in (tokenizer.files if tokenizer else {}).items():
        (stage / name).write_bytes(content)
    data = contract(model, graph, report, target=target, tokenizer=tokenizer, encoder=encoder)
    data["files"] = {path.name: path.stat().st_size for path in sorted(stage.iterdir())}
    (stage / CONTRACT).write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def contract(
    model: ir.Model,
    graph: Graph,
    report: ExportReport,
    *,
    target: Mapping[str, Any],
    tokenizer: TokenizerFiles | None = None,
    encoder: ir.Model | None = None,
) -> dict[str, Any]:
    """The contents of ``archc.json`` but for the sizes of files."""
    described = report.to_json()
    described["files"] = {Path(path).name: size for path, size in report.files.items()}
    return {
        "archc": __version__,
        "format": FORMAT,
        "name": graph.name,
        "mask": graph.mask,
        "inputs": [_described(value) for value in model.graph.inputs if not _is_cache(value)],
        "outputs": [_described(value) for value in model.graph.outputs if not (value.name or "").startswith("present")],
        "encoder": None if encoder is None else _encoder(encoder),
        "caches": _caches(model, graph, report),
        "capacity_multiple": CAPACITY_MULTIPLE,
        "reserved_rows": graph.reserved_rows(),
        "max_model_len": report.max_model_len,
        "vocab_size": graph.vocab_size,
        "source_vocab_size": graph.source_vocab_size,
        "start_id": graph.start_id,
        "batched_chunks": takes_batched_chunks(model),
        "ragged_prompts": not _has_rolling_caches(model),
        "target": dict(target),
        "onnxruntime": report.onnxruntime,
        "special_token_ids": tokenizer.special_token_ids if tokenizer else {},
        "tokenizer": {"file": TOKENIZER} if tokenizer and TOKENIZER in tokenizer.files else None,
        "source_tokenizer": _source_tokenizer(tokenizer) if tokenizer and tokenizer.has_own_source else None,
        "report": described,
    }


def _encoder(model: ir.Model) -> dict[str, Any]:
    """The file that runs once a text; what it gives are caches of growth ``source`` under their ``output``."""
    return {
        "file": ENCODER_FILE,
        "inputs": [_described(value) for value in model.graph.inputs],
        "outputs": [_described(value) for value in model.graph.outputs],
    }


def _caches(model: ir.Model, graph: Graph, report: ExportReport) -> list[dict[str, Any]]:
    states = graph.states()
    in_place = dict(bindable_to_one_buffer(model))
    return [
        {
            "input": cache.name,
            "output": present_name(cache.name),
            "state": cache.state,
            "dtype": cache.dtype,
            "shape": list(cache.shape),
            "growth": "append" if cache.bytes_per_token else states[cache.state].growth,
            "bytes_per_token": cache.bytes_per_token,
            "bytes_per_sequence": cache.bytes_per_sequence,
            "bytes_per_source_token": cache.bytes_per_source_token,
            "in_place": in_place.get(cache.name, False),
        }
        for cache in report.caches
    ]


def bindable_to_one_buffer(model: ir.Model) -> Iterable[tuple[str, bool]]:
    """(cache input, whether past and present may lie in one buffer) for every cache of a model.

    They may where nothing reads the past once the present is being written: each of its readers is the node that makes the
    present, or comes before that node however a runtime orders the rest.
    """
    outputs = {value.name: value for value in model.graph.outputs}
    for past in model.graph.inputs:
        if not _is_cache(past):
            continue
        assert past.name is not None
        present = outputs.get(present_name(past.name))
        maker = None if present is None else present.producer()
        # A shape is not in the buffer.
        readers = {_at_root(node, model.graph) for node in past.consumers() if node.op_type != "Shape"}
        yield past.name, maker is not None and readers <= _with_ancestors(maker, readers)


def _with_ancestors(node: ir.Node, wanted: set[ir.Node]) -> set[ir.Node]:
    """The node and those of ``wanted`` that it depends on. A walk back through a model ends at the readers."""
    found, open_nodes, seen = {node}, [node], {node}
    while open_nodes and not wanted <= found:
        for value in _read_by(open_nodes.pop()):
            before = value.producer()
            if before is None or before in seen:
                continue
            seen.add(before)
            open_nodes.append(before)
            if before in wanted:
                found.add(before)
    return found


def _read_by(node: ir.Node) -> list[ir.Value]:
    """What a node reads, by the nodes of its branches included."""
    read = [value for value in node.inputs if value is not None]
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            read += [value for inner in attribute.as_graph().all_nodes() for value in inner.inputs if value is not None]
    return read


def _at_root(node: ir.Node, root: ir.Graph) -> ir.Node:
    """The node itself, or the one of the main graph whose branch it stands in."""
    while node.graph is not None and node.graph is not root:
        owner = next(outer for outer in root if _owns(outer, node.graph))
        node = owner
    return node


def _owns(node: ir.Node, graph: Any) -> bool:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            inner = attribute.as_graph()
            if inner is graph or any(_owns(deeper, graph) for deeper in inner):
                return True
    return False


def _has_rolling_caches(model: ir.Model) -> bool:
    """Whether windows are GroupQueryAttention's own, which refuse prompts of different lengths."""
    attributes = (node.attributes.get("sliding_window_cache") for node in model.graph.all_nodes())
    return any(found is not None and found.as_int() != 0 for found in attributes)


def _is_cache(value: ir.Value) -> bool:
    return (value.name or "").startswith(f"{PAST}.")


def _described(value: ir.Value) -> dict[str, Any]:
    assert value.dtype is not None
    assert value.shape is not None
    dims = [dim if isinstance(dim, int) else str(dim) for dim in value.shape.dims]
    return {"name": value.name, "dtype": value.dtype.numpy().name, "shape": dims}


def _spec_text(spec: Resolved, tokenizer: TokenizerFiles | None) -> str:
    tree = dict(spec.tree)
    for where, name in (tokenizer.places if tokenizer else {}).items():
        section = where[0] if len(where) > 1 else ""
        kind = getattr(spec.spec, section).tokenizer if section else spec.spec.tokenizer
        if "file" not in type(kind).model_fields:
            continue
        if section:
            stated = {**tree[section], "tokenizer": {**tree[section]["tokenizer"], "file": name}}
            tree[section] = stated
        else:
            tree["tokenizer"] = {**tree["tokenizer"], "file": name}
    return emit(tree, {})


def _source_tokenizer(tokenizer: TokenizerFiles) -> dict[str, str | None]:
    """The file of an encoder's own tokenizer, null where the spec gives none: prompts are ids then."""
    return {"file": SOURCE_TOKENIZER if SOURCE_TOKENIZER in tokenizer.files else None}
