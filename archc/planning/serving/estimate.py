"""What serving a model takes on every rank: weights, cache, workspace; and what batch and length fit a device."""

from __future__ import annotations

from archc.errors import Problem, SpecError
from archc.estimation.cache import DEFAULT_BLOCK_SIZE_TOKENS
from archc.estimation.estimate import length_of
from archc.expansion import Source, as_graph
from archc.graph.graph import Graph
from archc.planning.fitting import largest_that_fits
from archc.planning.hardware import Device
from archc.planning.options import below_one, known_device, known_dtype, no_share, unread_source
from archc.planning.parallel import Parallel, legal_splits
from archc.planning.serving.memory import Fit, Pool, Serving, ServingOptions, StageMemory
from archc.planning.serving.need import Need
from archc.planning.serving.paged import StateMode
from archc.planning.serving.rank_cache import kind_caches
from archc.planning.sharding import Sharding, shard

PREFILL_TOKENS = 8192
"""Tokens read at once, vLLM's usual ``--max-num-batched-tokens``."""

OVERHEAD_BYTES = 1 << 30
"""What a runtime takes on each device beside what is counted: the driver's context, compiled graphs, communication buffers.

An assumption, to be replaced by what a runtime's log says."""

MEMORY_UTILIZATION = 0.9
"""The part of a device's memory that a runtime may use, vLLM's ``--gpu-memory-utilization``."""

LARGE_SHARE = 0.05
"""A warning is given where a request of one token takes more than this part of the pool of blocks."""


def estimate_serving(
    spec_or_graph: Source,
    *,
    batch_size: int = 1,
    max_model_len: int | None = None,
    source_len: int | None = None,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
    block_size: int | None = None,
    parallel: Parallel | None = None,
    gpu: str | Device | None = None,
    gpus: int | None = None,
    prefill_tokens: int = PREFILL_TOKENS,
    prefix_caching: bool = False,
    prefix_tokens: int = 0,
    state_block_tokens: int | None = None,
    workspace_bytes: int | None = None,
    overhead_bytes: int = OVERHEAD_BYTES,
    memory_utilization: float = MEMORY_UTILIZATION,
    warn_share: float = LARGE_SHARE,
) -> Serving:
    """Memory of serving a spec, a graph, a file or a shipped name, on each rank; bytes and tokens are integers.

    ``batch_size`` sequences of ``max_model_len`` tokens are kept by all ``dp`` copies together. Without ``parallel``, ``gpus``
    are shared by tp as far as the model can be cut, then by pp. ``block_size``, in tokens, is by default what the spec's cache
    policies state, or 16. ``prefix_caching`` keeps a recurrent state more a sequence, at
    its last block boundary, or one every ``state_block_tokens`` where those are stated (vLLM's ``--mamba-block-size``);
    ``prefix_tokens`` that all sequences begin with are kept once. ``gpu`` is a name of the catalogue.

    Raises:
        ArchcError: the spec has problems.
        SpecError: the ranks, the device or a number can't be; every reason is listed.
    """
    graph = as_graph(spec_or_graph)
    problems = unread_source(graph, source_len)
    length = length_of(graph, max_model_len)
    device = known_device(gpu, problems)
    numbers = {
        "batch_size": batch_size,
        "max_model_len": length,
        "block_size": block_size,
        "prefill_tokens": prefill_tokens,
        "source_len": source_len,
        "state_block_tokens": state_block_tokens,
        "gpus": gpus,
    }
    problems += below_one(numbers)
    positive = {"prefix_tokens": prefix_tokens, "workspace_bytes": workspace_bytes, "overhead_bytes": overhead_bytes}
    problems += [
        f"{name} should not be negative (found {n})" for name, n in positive.items() if n is not None and n < 0
    ]
    problems += no_share({"memory_utilization": memory_utilization})
    if prefix_tokens and not prefix_caching:
        problems.append("prefix_tokens are shared under prefix_caching only")
    if prefix_tokens > length:
        problems.append(f"prefix_tokens, {prefix_tokens:,}, are more than the {length:,} of a sequence")
    if state_block_tokens is not None and not prefix_caching:
        problems.append("state_block_tokens say how often a state is kept under prefix_caching only")
    dtypes = [
        known_dtype(name, text, problems) for name, text in (("dtype", dtype), ("kv_cache_dtype", kv_cache_dtype))
    ]
    sharding = None if gpus is not None and gpus < 1 else _sharding(graph, parallel, gpus, problems)
    if problems or sharding is None:
        raise SpecError([Problem(message=message, code="serve") for message in problems])
    mode: StateMode = "none" if not prefix_caching else "align" if state_block_tokens is None else "all"
    options = ServingOptions(
        batch_size=batch_size,
        max_model_len=length,
        source_len=(source_len or length) if graph.reads_encoder else None,
        dtype=dtypes[0] or graph.dtype,
        kv_cache_dtype=dtypes[1],
        block_size_tokens=block_size or _stated_block(graph),
        prefill_tokens=prefill_tokens,
        prefix_tokens=prefix_tokens,
        state_mode=mode,
        state_block_tokens=state_block_tokens,
        workspace_bytes=workspace_bytes,
        overhead_bytes=overhead_bytes,
        memory_utilization=memory_utilization,
        warn_share=warn_share,
    )
    return _served(graph, sharding, options, device)


def _stated_block(graph: Graph) -> int:
    """Tokens a block that the spec's cache policies state; one pool has one size, so the largest."""
    return max((tokens for _, tokens in graph.policies.values() if tokens), default=DEFAULT_BLOCK_SIZE_TOKENS)


def _sharding(graph: Graph, parallel: Parallel | None, gpus: int | None, problems: list[str]) -> Sharding | None:
    """The stated split, or the one of so many devices with most tensor parallelism."""
    if parallel is not None:
        sharding = shard(graph, parallel)
        problems += sharding.problems
        if sharding.problems and not parallel.problems():
            others = [str(split) for split in legal_splits(parallel.ranks) if not shard(graph, split).problems]
            if others:
                problems.append(f"{parallel.ranks} devices can be used as {'; '.join(others)}")
        if gpus is not None and not parallel.problems() and parallel.ranks != gpus:
            problems.append(
                f"{parallel} takes {parallel.ranks} devices (tp {parallel.tp} x pp {parallel.pp} x dp {parallel.dp} x cp "
                f"{parallel.cp}), and gpus says {gpus}"
            )
        return sharding
    tried = [shard(graph, split) for split in legal_splits(gpus or 1)]
    legal = [sharding for sharding in tried if not sharding.problems]
    if legal:
        return legal[0]
    problems += [f"{graph.name} can't be shared by {gpus} devices through tp and pp alone", *tried[0].problems]
    return None


def _served(graph: Graph, sharding: Sharding, options: ServingOptions, device: Device | None) -> Serving:
    parallel = sharding.parallel
    need = Need(graph, sharding, options)
    batch = -(-options.batch_size // parallel.dp)
    length = options.max_model_len
    stages = [_stage_memory(need, index, batch) for index in range(len(sharding.stages))]
    found = Serving(
        name=graph.name,
        options=options,
        parallel=parallel,
        gpus=parallel.ranks,
        device=device,
        kinds=kind_caches(sharding, need.cache_options),
        stages=stages,
        pages=need.pages,
        pool=None,
        fits={},
        replicated=_replicated(sharding),
        notes=[*sharding.notes, *need.pages.notes],
    )
    if graph.mtp is not None:
        found.notes.append("extra prediction layers (mtp) are not loaded")
    if graph.max_position_embeddings is not None and length > graph.max_position_embeddings:
        found.warnings.append(
            f"{length:,} tokens are more than the model is made for, {graph.max_position_embeddings:,}"
        )
    if device is not None:
        budget = int(device.memory_bytes * options.memory_utilization)
        found.pool = _pool(need, budget, batch)
        found.fits = {runtime: _fit(need, budget, batch, runtime) for runtime in ("paged", "tensors", "ideal")}
        _warn(found)
    return found


def _stage_memory(need: Need, index: int, batch: int) -> StageMemory:
    options, length = need.options, need.options.max_model_len
    stated = options.workspace_bytes
    workspace = need.workspace(index, batch, length) if stated is None else None
    pages = need.pages
    layers = need.layers[index]
    unmanaged = None
    if all(layer.type in ("full", "sliding", "chunked") for layer in layers):
        on_rank = -(-length // pages.cp)
        rows = -(-on_rank // options.block_size_tokens) * options.block_size_tokens
        unmanaged = batch * int(sum(layer.token_bytes for layer in layers) * rows)
    return StageMemory(
        index=index,
        layers=len(need.sharding.stages[index].layers),
        weight_bytes=need.weights[index],
        workspace=workspace,
        workspace_bytes=workspace.bytes if workspace is not None else stated or 0,
        overhead_bytes=options.overhead_bytes,
        used_bytes=need.cache(index, batch, length, "ideal"),
        allocated_bytes=need.cache(index, batch, length, "tensors"),
        paged_bytes=pages.batch_bytes(
            index,
            batch,
            length,
            source_tokens=need.cache_options.source_len,
            prefix_tokens=options.prefix_tokens,
        ),
        unmanaged_bytes=unmanaged,
    )


def _pool(need: Need, budget: int, batch: int) -> Pool:
    length, pages = need.options.max_model_len, need.pages
    room = [budget - need.beside_cache(index, batch, length) for index in range(len(need.weights))]
    counts = [max(free, 0) // size for free, size in zip(room, pages.block_bytes, strict=True) if size]
    blocks = min(counts, default=0)
    least = pages.request_blocks(1, source_tokens=1)
    source = need.cache_options.source_len
    whole = pages.admitted_blocks(length, need.options.prefill_tokens, source_tokens=source)
    return Pool(
        bytes=max(min(room), 0),
        blocks=blocks,
        least_request_blocks=least,
        least_request_bytes=max(pages.least_bytes(index) for index in range(len(need.weights))),
        least_request_share=least / blocks if blocks else 1.0,
        concurrency=blocks / whole if whole else 0.0,
    )


def _fit(need: Need, budget: int, batch: int, runtime: str) -> Fit:
    length = need.options.max_model_len
    copies = need.parallel.dp
    most = largest_that_fits(lambda number: need.fits(budget, number, length, runtime))
    longest = largest_that_fits(lambda tokens: need.fits(budget, batch, tokens, runtime))
    return Fit(None if most is None else most * copies, longest, _limit(need, budget, runtime, most))


def _limit(need: Need, budget: int, runtime: str, most: int | None) -> str:
    """What stands in the way of one sequence more."""
    if most is None:
        return "nothing that grows with the batch"
    length, batch = need.options.max_model_len, most + 1
    stages = range(len(need.weights))
    worst = max(stages, key=lambda i: need.beside_cache(i, batch, length) + need.cache(i, batch, length, runtime))
    where = f" of stage {worst}" if len(need.weights) > 1 else ""
    if need.weights[worst] > budget:
        return f"the weights{where} alone are more than the memory"
    if need.beside_cache(worst, 1, length) > budget:
        return f"weights, workspace and overhead{where} are more than the memory"
    workspace = need.beside_cache(worst, batch, length) - need.weights[worst] - need.options.overhead_bytes
    cache = need.cache(worst, batch, length, runtime)
    return f"the cache{where}" if cache >= workspace else f"the workspace{where}"


def _replicated(sharding: Sharding) -> dict[str, list[str]]:
    """Why -> weights that several ranks of one model copy hold, by the names that they have in a layer."""
    found: dict[str, dict[str, None]] = {}
    for stage in sharding.stages:
        for each in stage.params:
            shared_out = each.is_expert and sharding.parallel.ep > 1
            if each.copies > (sharding.parallel.dp if shared_out else 1):
                name = each.names[0] if not each.layer else f"{each.kind}: {_inner(each.names[0], each.prefixes[0])}"
                found.setdefault(f"on {each.copies} ranks: {each.why}", {})[name] = None
    return {why: list(names) for why, names in found.items()}


def _inner(name: str, prefix: str) -> str:
    return name.removeprefix(f"{prefix}.")


def _warn(found: Serving) -> None:
    pool, share = found.pool, found.options.warn_share
    assert pool is not None, "a device has a pool"
    if pool.blocks and pool.least_request_share > share:
        found.warnings.append(
            f"a request of one token takes {pool.least_request_share:.1%} of the pool, more than {share:.0%}: "
            f"{pool.least_request_blocks} blocks, {pool.least_request_bytes:,} B on a rank"
        )
    fit = found.fits["paged"]
    if fit.max_batch == 0:
        found.warnings.append(f"not one sequence of {found.options.max_model_len:,} tokens fits: {fit.limit}")
    elif fit.max_batch is not None and fit.max_batch < found.options.batch_size:
        found.warnings.append(f"a batch of {found.options.batch_size:,} does not fit; {fit.max_batch:,} does")
