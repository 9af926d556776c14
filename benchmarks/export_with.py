"""One graph of one peer, in its environment: prints what it took as JSON in the last line.

python benchmarks/export_with.py graph CONFIG.json [--repeat 5]      mobius' graph without weights, in process
python benchmarks/export_with.py dynamo CHECKPOINT --layers 4 --tokens 64     torch.onnx.export of transformers' model
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def graph(config_file: Path, repeat: int) -> dict[str, Any]:
    """Seconds and nodes of mobius' graph for its CPU target, float32, imports and the config excluded."""
    import transformers
    from mobius import build_from_module, registry
    from mobius._config_resolver import _config_from_hf, _default_task_for_model
    from onnx_ir import DataType

    given = json.loads(config_file.read_text())
    hf_config = transformers.AutoConfig.for_model(**given)
    config = dataclasses.replace(_config_from_hf(hf_config, parent_config=hf_config), dtype=DataType.FLOAT)
    task = _default_task_for_model(hf_config.model_type)
    times: list[float] = []
    cpu: list[float] = []
    nodes = 0
    for _ in range(repeat):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        module = registry.get(hf_config.model_type)(config)
        package = build_from_module(module, config, task=task, execution_provider="cpu")
        times.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - cpu_begin)
        nodes = sum(1 for _ in package["model"].graph.all_nodes())
    return {"seconds": times, "cpu_seconds": cpu, "nodes": nodes}


def dynamo(checkpoint: Path, layers: int, tokens: int) -> dict[str, Any]:
    """Processor seconds and nodes of torch's exporter on the first layers of a checkpoint; no cache, static length."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(checkpoint)
    config.num_hidden_layers = layers
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(config, name, None):
            setattr(config, name, getattr(config, name)[:layers])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(ids, use_cache=False).logits

    ids = torch.zeros(1, tokens, dtype=torch.int64)
    begin, cpu = time.perf_counter(), time.process_time()
    program = torch.onnx.export(Logits(), (ids,), dynamo=True, opset_version=24, verbose=False)
    assert program is not None
    with tempfile.TemporaryDirectory() as folder:
        program.save(Path(folder) / "model.onnx")
    nodes = sum(1 for _ in program.model.graph.all_nodes())
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    return {"seconds": [seconds], "cpu_seconds": [cpu_seconds], "nodes": nodes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["graph", "dynamo"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    if options.what == "graph":
        found = graph(options.path, options.repeat)
    else:
        found = dynamo(options.path, options.layers, options.tokens)
    found["rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


if __name__ == "__main__":
    main()
