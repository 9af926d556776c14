"""Bytes that a rank needs, by batch and length."""

from __future__ import annotations

from archc.estimation.cache import CacheOptions
from archc.graph.graph import Graph, resolve_dtype
from archc.planning.serving.memory import ServingOptions
from archc.planning.serving.paged import plan_pages
from archc.planning.serving.rank_cache import cache_bytes, layer_caches
from archc.planning.serving.workspace import (
    Activations,
    Reading,
    Workspace,
    logits_bytes,
    logits_rows,
    read_at_once,
    source_read_at_once,
)
from archc.planning.sharding import Sharding, Stage
from archc.units import tensor_bytes


def weight_bytes(stage: Stage, dtype: str) -> int:
    """Bytes of the weights that a rank of a stage holds; those whose dtype is fixed keep their own."""
    return sum(
        tensor_bytes(each.elements, resolve_dtype(each.param.dtype, dtype)) * each.count for each in stage.params
    )


class Need:
    """Bytes of a rank by batch of one model copy and length; made once, asked often."""

    def __init__(self, graph: Graph, sharding: Sharding, options: ServingOptions) -> None:
        self.graph, self.sharding, self.options = graph, sharding, options
        self.parallel = sharding.parallel
        self.cache_options = CacheOptions(
            options.dtype,
            options.kv_cache_dtype,
            1,
            options.max_model_len,
            options.source_len or options.max_model_len,
            options.block_size_tokens,
        )
        self.weights = [weight_bytes(stage, options.dtype) for stage in sharding.stages]
        caches = [layer_caches(stage, self.cache_options, self.parallel.cp) for stage in sharding.stages]
        self.layers = [layers for layers, _ in caches]
        self.pages = plan_pages(
            self.layers,
            block_tokens=options.block_size_tokens,
            beside_bytes=[beside for _, beside in caches],
            mode=options.state_mode,
            state_block_tokens=options.state_block_tokens,
            cp=self.parallel.cp,
        )
        calls = {call.name: call for call in graph.root.calls()}
        self._calls = [[calls[name] for name in stage.layers] for stage in sharding.stages]
        self._peaks: dict[tuple[Reading, Reading], list[int]] = {}

    def workspace(self, index: int, batch: int, tokens: int) -> Workspace:
        """Values of what is read at once, and logits on the last stage."""
        prefill, dtype = self.options.prefill_tokens, self.options.dtype
        reading = read_at_once(self.graph, prefill, batch, tokens)
        source = source_read_at_once(prefill, batch, self.cache_options.source_len)
        if (reading, source) not in self._peaks:
            activations = Activations(self.parallel, dtype, reading, source)
            self._peaks[reading, source] = [activations.peak_bytes(self.graph.root, calls) for calls in self._calls]
        rows = logits_rows(self.graph, batch, reading) if index == len(self._calls) - 1 else 0
        logits = logits_bytes(self.graph, dtype, rows)
        return Workspace(self._peaks[reading, source][index], logits, reading.tokens, rows)

    def beside_cache(self, index: int, batch: int, tokens: int) -> int:
        """Weights, workspace and overhead."""
        stated = self.options.workspace_bytes
        workspace = self.workspace(index, batch, tokens).bytes if stated is None else stated
        return self.weights[index] + workspace + self.options.overhead_bytes

    def cache(self, index: int, batch: int, tokens: int, runtime: str) -> int:
        """The cache's bytes under ``ideal``, ``tensors`` or ``paged``.

        The last keeps one block for no token, and windows of the sequence that is being read hold more for that while.
        """
        if runtime == "paged":
            source, prefix = self.cache_options.source_len, self.options.prefix_tokens
            held = self.pages.batch_bytes(index, batch, tokens, source_tokens=source, prefix_tokens=prefix)
            reading = self.pages.admitted_blocks(tokens, self.options.prefill_tokens, source_tokens=source)
            more = max(reading - self.pages.request_blocks(tokens, source_tokens=source), 0) + 1
            return held + more * self.pages.block_bytes[index]
        stage = self.sharding.stages[index]
        return cache_bytes(stage, self.graph, self.cache_options, batch, tokens, allocated=runtime == "tensors")

    def fits(self, budget: int, batch: int, tokens: int, runtime: str) -> bool:
        return all(
            self.beside_cache(index, batch, tokens) + self.cache(index, batch, tokens, runtime) <= budget
            for index in range(len(self.weights))
        )
