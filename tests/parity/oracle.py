"""The judge: a tiny transformers model, every tensor of it random, and its logits.

Nothing here knows archc.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.parity.family import Family

BATCH, TOKENS = 2, 32
FIRST_ID, LAST_ID = 5, 88


class Oracle:
    """A transformers model in float32 on the CPU, its input ids (batch, tokens), and its logits of all of them."""

    def __init__(self, family: Family) -> None:
        import transformers

        self.family = family
        config = getattr(transformers, family.config_class)(**family.config)
        # Eager attention is the only one that gpt-oss has; eager experts sum in a fixed order.
        config._attn_implementation = family.attention
        config._experts_implementation = "eager"
        torch.manual_seed(family.seed)
        self.model = getattr(transformers, family.model_class)(config).eval()
        _randomise(self.model, family.seed + 1, family.derived)
        draw = torch.Generator().manual_seed(family.seed + 2)
        self.ids = torch.randint(FIRST_ID, LAST_ID, (BATCH, TOKENS), generator=draw)
        self.logits = self.forward(self.ids)

    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        """Logits without a cache."""
        return self.model(input_ids=ids, use_cache=False).logits

    @torch.no_grad()
    def in_pieces(self, lengths: Iterable[int]) -> Tensor:
        """Logits of the same ids, fed in pieces through transformers' own cache."""
        memory, past, pieces = None, 0, []
        for length in lengths:
            more: dict[str, Any] = {}
            if self.family.states_positions:
                more["position_ids"] = torch.arange(past, past + length).unsqueeze(0)
            out = self.model(input_ids=self.ids[:, past : past + length], cache=memory, use_cache=True, **more)
            memory = out.cache
            pieces.append(out.logits)
            past += length
        return torch.cat(pieces, 1)

    @torch.no_grad()
    def cached_keys(self) -> list[Tensor]:
        """The keys that transformers caches for all ids, a layer each, (batch, heads, tokens, width)."""
        cache = self.model(input_ids=self.ids, use_cache=True).cache
        return [layer.keys for layer in cache.layers]

    def state(self) -> Mapping[str, Tensor]:
        """Every persistent tensor that the config does not give, under its run-time name; a tied one under each of its names."""
        derived = self.family.derived
        return {
            name: tensor.detach() for name, tensor in self.model.state_dict().items() if not _matches(name, derived)
        }

    def tied(self) -> dict[str, str]:
        """Names that stand for a tensor which another name holds, and that name."""
        return dict(self.model.all_tied_weights_keys or {})


@cache
def oracle_of(family_name: str) -> Oracle:
    """One oracle a family and process; nothing may write to it."""
    from tests.parity.families import FAMILIES

    return Oracle(next(family for family in FAMILIES if family.name == family_name))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


@torch.no_grad()
def _randomise(model: Any, seed: int, derived: Iterable[str] = ()) -> None:
    """A value for every persistent tensor that is not its initial one, so that none can be dropped or swapped unseen.

    Matrices are N(0, 1 / columns), vectors their initial value + N(0, 0.2). Decays are drawn so that a state forgets
    neither at once nor never: what 24 tokens left behind still matters.
    """
    draw = torch.Generator().manual_seed(seed)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    seen: set[int] = set()
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if tensor.data_ptr() in seen or _matches(name, derived):
            continue
        seen.add(tensor.data_ptr())
        leaf = name.rsplit(".", 1)[-1]
        normal = torch.randn(tensor.shape, generator=draw)
        if not tensor.is_floating_point():
            # Experts by token id: as many different ones as a row is wide.
            tensor.copy_(
                torch.rand(len(tensor), model.config.n_routed_experts, generator=draw).topk(tensor.shape[1])[1]
            )
        elif leaf == "A_log":
            tensor.copy_(torch.log(0.5 + 3.5 * torch.rand(tensor.shape, generator=draw)))
        elif leaf == "dt_bias":
            tensor.copy_(-1.5 + 0.5 * normal)
        elif leaf == "sinks":
            tensor.copy_(0.7 * normal)
        elif leaf == "e_score_correction_bias":
            tensor.copy_(0.3 * normal)
        elif id(tensor) in tables:
            tensor.copy_(0.5 * normal)
        elif tensor.dim() == 1:
            tensor.add_(0.2 * normal)
        else:
            tensor.copy_(normal / math.sqrt(tensor.shape[-1]))
    model.tie_weights()


@torch.no_grad()
def rounding_gain(oracle: Oracle, *, relative: float = 1e-6) -> float:
    """Largest change of the logits when every weight is multiplied by 1 + relative N(0, 1), divided by ``relative``."""
    draw, kept, seen = torch.Generator().manual_seed(5), [], set()
    for tensor in oracle.model.state_dict(keep_vars=True).values():
        if tensor.is_floating_point() and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            kept.append((tensor, tensor.detach().clone()))
            tensor.mul_(1 + relative * torch.randn(tensor.shape, generator=draw))
    try:
        return float((oracle.forward(oracle.ids) - oracle.logits).abs().max()) / relative
    finally:
        for tensor, before in kept:
            tensor.copy_(before)
