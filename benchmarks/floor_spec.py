"""The floor of a cold estimate: one process that reads a spec with click, pyyaml and pydantic and sums its costs by hand.

It knows one shape of spec (full, latent and delta-rule attention; dense and routed feed-forwards) and checks it with
plain pydantic models. Nothing cheaper can read, validate and count a spec in these libraries.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import click
import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tokenizer(Section):
    kind: Literal["external"]
    vocab_size: PositiveInt


class Embedding(Section):
    hidden_size: PositiveInt
    tie_word_embeddings: bool


class Norm(Section):
    kind: Literal["rms_norm"]
    eps: Annotated[float, Field(gt=0)]


class GQA(Section):
    kind: Literal["gqa"]
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt

    def parameters(self, hidden_size: int) -> int:
        return hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)

    def elements_per_token(self) -> int:
        return 2 * self.num_kv_heads * self.head_dim

    def state_bytes(self) -> int:
        return 0


class MLA(Section):
    kind: Literal["mla"]
    num_heads: PositiveInt
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt

    def parameters(self, hidden_size: int) -> int:
        heads, rank, head_dim = self.num_heads, self.kv_lora_rank, self.qk_nope_head_dim + self.qk_rope_head_dim
        return (
            hidden_size * heads * head_dim
            + hidden_size * (rank + self.qk_rope_head_dim)
            + rank
            + rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
            + heads * self.v_head_dim * hidden_size
        )

    def elements_per_token(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim

    def state_bytes(self) -> int:
        return 0


class KDA(Section):
    kind: Literal["kda"]
    num_heads: PositiveInt
    head_dim: PositiveInt
    conv_kernel: PositiveInt

    def parameters(self, hidden_size: int) -> int:
        heads, head_dim = self.num_heads, self.head_dim
        width = heads * head_dim
        gates = 2 * (hidden_size * head_dim + head_dim * width) + hidden_size * heads + heads + width
        return 4 * hidden_size * width + 3 * width * self.conv_kernel + gates + head_dim

    def elements_per_token(self) -> int:
        return 0

    def state_bytes(self) -> int:
        width = self.num_heads * self.head_dim
        return 4 * width * self.head_dim + 2 * 3 * width * (self.conv_kernel - 1)


class SwiGLU(Section):
    kind: Literal["swiglu"]
    intermediate_size: PositiveInt

    def parameters(self, hidden_size: int) -> int:
        return 3 * hidden_size * self.intermediate_size

    def active(self, hidden_size: int) -> int:
        return self.parameters(hidden_size)


class Router(Section):
    scoring_func: Literal["softmax", "sigmoid"]
    correction_bias: bool = False
    norm_topk_prob: bool
    routed_scaling_factor: float = 1.0


class MoE(Section):
    kind: Literal["moe"]
    num_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    num_shared_experts: int
    intermediate_size: PositiveInt
    router: Router

    def parameters(self, hidden_size: int) -> int:
        return self._with(hidden_size, self.num_experts)

    def active(self, hidden_size: int) -> int:
        return self._with(hidden_size, self.num_experts_per_tok)

    def _with(self, hidden_size: int, experts: int) -> int:
        expert = 3 * hidden_size * self.intermediate_size
        return hidden_size * self.num_experts + (experts + self.num_shared_experts) * expert


class Stack(Section):
    num_layers: PositiveInt
    block: Literal["pre_norm"]
    mixer: str
    ffn: str


class Cache(Section):
    policy: Literal["full"]
    dtype: str
    state_dtype: str


class Spec(Section):
    spec_version: Literal[1]
    name: str
    description: str
    tokenizer: Tokenizer
    embedding: Embedding
    position: Literal["none"]
    norm: Norm
    max_position_embeddings: PositiveInt
    mixers: dict[str, Annotated[GQA | MLA | KDA, Field(discriminator="kind")]]
    ffns: dict[str, Annotated[SwiGLU | MoE, Field(discriminator="kind")]]
    stack: Stack
    cache: Cache


class Loader(yaml.SafeLoader):
    """Numbers as YAML 1.2 writes them."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def schedule(pattern: str, num_layers: int) -> list[str]:
    """Names of the layers; ``(a*3 b)*`` and ``a*`` repeat as often as they fit before the tail."""
    head, tail = re.fullmatch(r"(.*?\)\*|.*\*)?(.*)", pattern).groups()  # type: ignore[union-attr]
    rest = [name for word in tail.split() for name in _times(word)]
    if head is None:
        return (rest * num_layers)[:num_layers] if len(rest) == 1 else rest
    words = head.removesuffix("*").strip("()").split()
    first = [name for word in words[:-1] for name in _times(word)] if not head.startswith("(") else []
    group = [name for word in (words if head.startswith("(") else words[-1:]) for name in _times(word)]
    repeats = (num_layers - len(first) - len(rest)) // len(group)
    return first + group * repeats + rest


def _times(word: str) -> list[str]:
    name, _, count = word.partition("*")
    return [name] * int(count or 1)


@click.command()
@click.argument("path")
def main(path: str) -> None:
    """Sum parameters and cache bytes of the spec in PATH."""
    with open(path, encoding="utf-8") as file:
        spec = Spec.model_validate(yaml.load(file, Loader))
    hidden_size, num_layers = spec.embedding.hidden_size, spec.stack.num_layers
    table = spec.tokenizer.vocab_size * hidden_size
    total = active = table * (1 if spec.embedding.tie_word_embeddings else 2) + hidden_size
    bytes_per_token = state_bytes = 0
    rows: dict[tuple[str, str], int] = {}
    mixers, ffns = schedule(spec.stack.mixer, num_layers), schedule(spec.stack.ffn, num_layers)
    for mixer_name, ffn_name in zip(mixers, ffns, strict=True):
        mixer, ffn = spec.mixers[mixer_name], spec.ffns[ffn_name]
        rows[mixer_name, ffn_name] = rows.get((mixer_name, ffn_name), 0) + 1
        total += mixer.parameters(hidden_size) + ffn.parameters(hidden_size) + 2 * hidden_size
        active += mixer.parameters(hidden_size) + ffn.active(hidden_size) + 2 * hidden_size
        bytes_per_token += 2 * mixer.elements_per_token()
        state_bytes += mixer.state_bytes()
    click.echo(f"{spec.name}: {total:,} parameters, {active:,} active")
    for (mixer_name, ffn_name), count in rows.items():
        click.echo(f"  {count} x {mixer_name} + {ffn_name}")
    used_bytes = bytes_per_token * spec.max_position_embeddings + state_bytes
    click.echo(f"{bytes_per_token:,} B/token, {state_bytes:,} B/sequence, {used_bytes:,} B used")


if __name__ == "__main__":
    main()
