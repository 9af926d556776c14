"""What ``archc plugins new`` writes: one small kind a family that works as it stands, and the files around it."""

from __future__ import annotations

from typing import NamedTuple


class Start(NamedTuple):
    """A kind to start from: its source, keys that its test gives it, and how a spec names it."""

    source: str
    keys: str
    yaml: str


_MIXER = '''\
"""The mixer $name."""

from __future__ import annotations

from pydantic import PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class $cls(Mixer):
    """Say in one line what it computes, and name the paper and its arXiv id."""

    num_heads: PositiveInt
    """Query, key and value heads."""
    head_dim: PositiveInt
    """Channels of a head."""

    def define(self, g: Builder, x: Value) -> Value:
        width = self.num_heads * self.head_dim
        q, k, v = (g.linear(f"{n}_proj", x, width, axis="heads") for n in "qkv")
        q, k = (self.position.rotate(g, each, head_dim=self.head_dim) for each in (q, k))
        heads = {"num_heads": self.num_heads, "num_kv_heads": self.num_heads}
        o = g.attention("attention", q, k, v, **heads, scale=self.head_dim**-0.5)
        return g.linear("o_proj", o, x.width)
'''

_FFN = '''\
"""The feed-forward $name."""

from __future__ import annotations

from pydantic import PositiveInt

from archc.families import FFN
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class $cls(FFN):
    """Say in one line what it computes, and name the paper and its arXiv id."""

    intermediate_size: PositiveInt
    """Inner width."""

    def define(self, g: Builder, x: Value) -> Value:
        up = g.activation(g.linear("up_proj", x, self.intermediate_size, axis="ffn"), "relu2")
        return g.linear("down_proj", up, x.width)
'''

_NORM = '''\
"""The norm $name."""

from __future__ import annotations

from pydantic import PositiveFloat

from archc.families import Norm
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class $cls(Norm):
    """Say in one line what it computes, and name the paper and its arXiv id."""

    eps: PositiveFloat
    """Added to the mean square before the root."""

    def epsilon(self) -> float:
        return self.eps

    def define(self, g: Builder, name: str, x: Value, *, head_dim: int | None = None) -> Value:
        return g.rms_norm(name, x, eps=self.eps, head_dim=head_dim)
'''

_POSITION = '''\
"""The position $name."""

from __future__ import annotations

from archc.families import Position
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class $cls(Position):
    """Say in one line how order is seen, and name the paper and its arXiv id."""

    theta: float
    """Base of the frequencies."""

    def rotate(
        self, g: Builder, x: Value, *, head_dim: int, dim: int | None = None, offset: int | None = None
    ) -> Value:
        dim = head_dim if dim is None else dim
        table = g.rope_table([self.theta ** (-2 * i / dim) for i in range(dim // 2)])
        return g.rotary(x, table, head_dim=head_dim, dim=dim, offset=offset or 0)
'''

_SCALING = '''\
"""The rope scaling $name."""

from __future__ import annotations

from pydantic import PositiveFloat

from archc.families import Scaling


class $cls(Scaling):
    """Say in one line how frequencies change, and name the paper and its arXiv id."""

    factor: PositiveFloat
    """How many times longer the context becomes."""

    def frequencies(self, theta: float, dim: int, *, length: int | None) -> tuple[float, ...]:
        return tuple(theta ** (-2 * i / dim) / self.factor for i in range(dim // 2))
'''

_BLOCK = '''\
"""The residual layout $name."""

from __future__ import annotations

from archc.families import Block, NormLayer, SubLayer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class $cls(Block):
    """Say in one line how the branches meet, and name the paper and its arXiv id."""

    def define(self, g: Builder, x: Value, *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer) -> Value:
        # A half-layer has one of the two branches.
        if mixer is not None:
            x = g.add(x, mixer(norm("mixer_norm", x)))
        if ffn is not None:
            x = g.add(x, ffn(norm("ffn_norm", x)))
        return x
'''

_HEAD = '''\
"""The head $name."""

from __future__ import annotations

from archc.families import Head
from archc.graph.vocabulary import Builder
from archc.ir.values import Param, Value


class $cls(Head):
    """Say in one line what reads the last layer, and name the paper and its arXiv id."""

    bias: bool = False
    """A bias on the logits."""

    def define(self, g: Builder, x: Value, *, table: Param, tied: bool) -> Value:
        rows = table.shape[0]
        return g.linear("lm_head", x, rows, bias=self.bias, axis="vocab", weight=table if tied else None)
'''

_ROUTER = '''\
"""The router $name."""

from __future__ import annotations

from archc.families import Router
from archc.ops.moe import Route


class $cls(Router):
    """Say in one line how experts are chosen and weighed, and name the paper and its arXiv id."""

    norm_topk_prob: bool
    """The chosen weights are divided by their sum."""

    def route(self, num_experts: int, top_k: int) -> Route:
        return Route(num_experts=num_experts, top_k=top_k, scoring_func="softmax", norm_topk_prob=self.norm_topk_prob)
'''

_SCORE = '''\
"""The score $name."""

from __future__ import annotations

from pydantic import PositiveFloat

from archc.families import Score
from archc.ops.score import ScoreForm


class $cls(Score):
    """Say in one line how a query and a key meet, and name the paper and its arXiv id."""

    factor: PositiveFloat = 1.0
    """Factor on the product of a query and a key."""

    def form(self, width: int) -> ScoreForm:
        return ScoreForm(function="softplus", weighing="sum", scale=self.factor)
'''

KINDS = {
    "mixer": Start(
        _MIXER, '{"num_heads": 2, "head_dim": 8}', "mixers:\n  mine: {kind: NAME, num_heads: 8, head_dim: 64}"
    ),
    "ffn": Start(_FFN, '{"intermediate_size": 24}', "ffns:\n  mine: {kind: NAME, intermediate_size: 2048}"),
    "norm": Start(_NORM, '{"eps": 1e-5}', "norm: {kind: NAME, eps: 1e-5}"),
    "position": Start(_POSITION, '{"theta": 100.0}', "position: {kind: NAME, theta: 10000.0}"),
    "scaling": Start(
        _SCALING, '{"factor": 4.0}', "position: {kind: rope, theta: 10000.0, scaling: {kind: NAME, factor: 4.0}}"
    ),
    "block": Start(_BLOCK, "{}", "stack: {num_layers: 12, block: NAME, mixer: attn, ffn: mlp}"),
    "head": Start(_HEAD, '{"bias": True}', "head: {kind: NAME, bias: true}"),
    "router": Start(_ROUTER, '{"norm_topk_prob": True}', "router: {kind: NAME, norm_topk_prob: true}  # of a moe"),
    "score": Start(
        _SCORE,
        '{"factor": 0.5}',
        "mixers:\n  mine: {kind: general_attention, num_heads: 8, head_dim: 64, score: {kind: NAME, factor: 0.5}}",
    ),
}
"""family -> what a new kind of it starts from."""

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$package"
version = "0.1.0"
description = "The $family $name for archc."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["archc-compiler"]

[project.optional-dependencies]
test = ["archc-compiler[torch,onnx]", "pytest"]

# Install the package again after a change here: entry points are metadata.
[project.entry-points."archc.$family"]
$name = "$module.$name:$cls"

[tool.hatch.build.targets.wheel]
packages = ["$module"]
"""

_README = """\
# $package

The $family `$name` for archc. A spec names it:

```yaml
$yaml
```

    pip install -e '.[test]'
    archc plugins show $family.$name      # its keys, ops, weights and states
    pytest                                # its contract: estimate = built, cached = uncached, ONNX = torch, ...
"""

_TEST = '''\
"""The contract of every kind: estimate = built, cached = uncached, activations = autograd's, ONNX = torch, and more."""

from archc.testing import check_kind


def test_${name}_keeps_the_contract():
    report = check_kind("$family.$name", $keys)
    print(report)
'''

FILES = {
    "pyproject.toml": _PYPROJECT,
    "README.md": _README,
    "$module/__init__.py": '"""The $family $name for archc."""\n',
    "$module/$name.py": "$kind",
    "tests/test_$name.py": _TEST,
}
"""Path -> text, both templates."""
