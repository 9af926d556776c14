"""Multi-head latent attention."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from archc.errors import GraphError
from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value

INNER_EPS = 1e-6
"""Both inner norms have this eps in every published model, whatever the spec's norm says."""


class MLA(Mixer):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). Cache a token: kv_lora_rank + qk_rope_head_dim."""

    refuses_slopes: ClassVar[bool] = True

    num_heads: PositiveInt
    """Heads."""
    q_lora_rank: PositiveInt | None = None
    """Rank of the compressed query. Default: null, one full projection."""
    kv_lora_rank: PositiveInt
    """Width of the latent from which keys and values are expanded."""
    qk_nope_head_dim: PositiveInt
    """Channels of a query and key head that never turn."""
    qk_rope_head_dim: PositiveInt
    """Width of the key that all heads share, rotated or not."""
    v_head_dim: PositiveInt
    """Channels of a value head."""
    bias: bool = False
    """Biases on q_a_proj, kv_a_proj and o_proj."""
    output_gate: bool = False
    """The output is multiplied by sigmoid(W x)."""

    def define(self, g: Builder, x: Value) -> Value:
        nope, rope, head_dim = (
            self.qk_nope_head_dim,
            self.qk_rope_head_dim,
            self.qk_nope_head_dim + self.qk_rope_head_dim,
        )
        scale = head_dim**-0.5 * self.position.softmax_multiplier()
        if self.position.bias(g, num_heads=self.num_heads, scale=scale) is not None:
            raise GraphError(
                f"{g.path}: {self.position.kind_name} adds to the scores, and {self.kind_name} has no place for it; "
                "give this mixer a position of its own, rope or none"
            )
        q_latent = None
        if self.q_lora_rank is None:
            q = g.linear("q_proj", x, self.num_heads * head_dim, axis="heads")
        else:
            q_latent = g.linear("q_a_proj", x, self.q_lora_rank, bias=self.bias)
            q_latent = g.rms_norm("q_a_layernorm", q_latent, eps=INNER_EPS)
            q = g.linear("q_b_proj", q_latent, self.num_heads * head_dim, axis="heads")
        row = g.linear("kv_a_proj_with_mqa", x, self.kv_lora_rank + rope, bias=self.bias)
        latent, key = g.split(row, (self.kv_lora_rank, rope))
        latent = g.rms_norm("kv_a_layernorm", latent, eps=INNER_EPS)
        q = self.position.rotate(g, q, head_dim=head_dim, dim=rope, offset=nope)
        key = self.position.rotate(g, key, head_dim=rope, dim=rope, offset=0)
        o = self.attend(g, x, q_latent, (q, latent, key), scale=scale)
        if self.output_gate:
            o = g.mul(o, g.sigmoid(g.linear("gate_proj", x, self.num_heads * self.v_head_dim, axis="heads")))
        return g.linear("o_proj", o, x.width, bias=self.bias)

    def attend(
        self, g: Builder, x: Value, q_latent: Value | None, rows: tuple[Value, Value, Value], *, scale: float
    ) -> Value:
        """(batch, seq, heads x v_head_dim) of queries, latents and shared keys; ``q_latent`` is the compressed query."""
        q, latent, key = rows
        return g.latent_attention(
            "attention",
            q,
            latent,
            key,
            num_heads=self.num_heads,
            nope_dim=self.qk_nope_head_dim,
            value_dim=self.v_head_dim,
            scale=scale,
        )
