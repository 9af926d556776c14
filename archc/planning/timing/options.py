"""Over how many ranks a time is estimated."""

from __future__ import annotations

from archc.graph.graph import Graph
from archc.planning.hardware import Device
from archc.planning.options import with_copies
from archc.planning.sharding import Parallel, Sharding, shard


def possible_sharding(
    graph: Graph, parallel: Parallel | None, gpus: int | None, device: Device | None, problems: list[str]
) -> Sharding | None:
    """The stated cut, with copies up to ``gpus``; else the widest tp over one set of links that the model can have."""
    if gpus is not None and gpus < 1:
        return None
    if parallel is None and gpus is not None:
        reach = min(gpus, device.link_devices if device else 1)
        found = (shard(graph, Parallel(tp=tp, dp=gpus // tp)) for tp in range(reach, 0, -1) if gpus % tp == 0)
        return next(one for one in found if not one.problems)
    parallel = with_copies(parallel or Parallel(), gpus, problems)
    sharding = shard(graph, parallel)
    problems += sharding.problems
    return sharding
