"""Grouped-query attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from archc.errors import GraphError
from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.spec.kind import Section
from archc.spec.values import Scale


class QueryTemperature(Section):
    """Query times 1 + scale ln(1 + floor((position + 1) / floor))."""

    scale: PositiveFloat
    """How fast the factor grows."""
    floor: PositiveInt
    """Tokens to one step of it."""


class GQA(Mixer):
    """Grouped-query attention, arXiv 2305.13245; num_kv_heads = num_heads is multi-head, 1 is multi-query attention."""

    masks: ClassVar[tuple[str, ...]] = ("causal", "bidirectional", "prefix")
    can_cross: ClassVar[bool] = True
    shared_values: ClassVar[int] = 2

    num_heads: PositiveInt
    """Query heads."""
    num_kv_heads: PositiveInt
    """Key and value heads: as many as num_heads is multi-head, 1 is multi-query attention."""
    head_dim: PositiveInt
    """Channels of a head; never derived."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    k_bias: bool | None = None
    """Bias on the key projection where it differs (DeBERTa, Whisper: none). Default: qkv_bias."""
    o_bias: bool = False
    """Bias on the output projection."""
    qk_norm: Literal["none", "head", "width", "unit"] = "none"
    """Norm of queries and keys. head: weights of head_dim, before rotation; width: over the whole projection; unit: no
    weights, after rotation."""
    sliding_window: PositiveInt | None = None
    """A token sees itself and the W - 1 tokens before it; in a bidirectional stack W // 2 on each side."""
    attention_chunk_size: PositiveInt | None = None
    """A token sees its own chunk of so many tokens."""
    softmax_scale: Scale | None = None
    """Factor on the scores. Default: 1/sqrt(head_dim)."""
    scale_attn_by_inverse_layer_idx: bool = False
    """Scores are divided by layer + 1, layers counted from 0 (GPT-2)."""
    attn_logit_softcapping: PositiveFloat | None = None
    """Scores s become c tanh(s / c)."""
    sink_logits: bool = False
    """One learned logit a head joins the softmax (gpt-oss)."""
    output_gate: bool = False
    """The output is multiplied by sigmoid(W x) (Qwen3-Next)."""
    query_temperature: QueryTemperature | None = None
    """Queries grow with the logarithm of their position (Llama 4)."""
    rotary_value: bool = False
    """Values turn with their position too (RoFormer)."""
    kv_from: str | None = None
    """Mixer of whose nearest earlier layer it reads keys and values; it owns none (YOCO, arXiv 2405.05254; CLA, arXiv
    2405.12981). Default: none."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.num_heads % self.num_kv_heads:
            yield "num_kv_heads", f"should divide num_heads, {self.num_heads} (found {self.num_kv_heads})"
        if self.sliding_window is not None and self.attention_chunk_size is not None:
            yield "attention_chunk_size", "says what a token sees, and so does sliding_window; state one of them"

    def forgetting_objection(self, newest: int, first: int) -> str:
        if self.attention_chunk_size is not None:
            return f"which sees no more than its own chunk of {self.attention_chunk_size} tokens"
        own = self.sliding_window
        if own is not None and (own <= newest or first):
            return f"which sees no more than its own window of {own} tokens"
        return ""

    def shares_of(self) -> str | None:
        return self.kv_from

    def shared_misfit(self, owner: Any) -> str:
        for name in ("num_kv_heads", "head_dim", "sliding_window", "attention_chunk_size", "rotary_value"):
            mine, theirs = getattr(self, name), getattr(owner, name)
            if mine != theirs:
                return f"reads keys and values made with {name} {_text(theirs)} (found {_text(mine)})"
        return ""

    def define(self, g: Builder, x: Value) -> Value:
        q, k, v = self._turned(g, *self._projected(g, x, x))
        if self.position.attends:
            return self._out(g, x, self._by_position(g, x, q, k, v))
        return self._out(g, x, g.attention("attention", q, k, v, **self._attending(g, x)))

    def _by_position(self, g: Builder, x: Value, q: Value, k: Value, v: Value) -> Value:
        plain = (
            "sliding_window",
            "attention_chunk_size",
            "attn_logit_softcapping",
            "sink_logits",
            "scale_attn_by_inverse_layer_idx",
        )
        if stated := [name for name in plain if getattr(self, name)]:
            raise GraphError(f"{g.path}: {', '.join(stated)} have no place under position {self.position.kind_name}")
        scale = self._scale(g, x.width)
        return self.position.attend(g, "attention", q, k, v, width=x.width, num_heads=self.num_heads, scale=scale)

    def share(self, g: Builder, x: Value) -> tuple[Value, ...]:
        q, k, v = self._turned(g, *self._projected(g, x, x))
        o, keys, values = g.attention_and_rows("attention", q, k, v, **self._attending(g, x))
        return self._out(g, x, o), keys, values

    def read(self, g: Builder, x: Value, *rows: Value) -> Value:
        (q,) = self._turned(g, self._queries(g, x))
        return self._out(g, x, g.shared_attention("attention", q, *rows, **self._attending(g, x)))

    def _turned(self, g: Builder, *qkv: Value) -> tuple[Value, ...]:
        """Queries, and keys where there are any, as they meet; values as they are, or turned."""
        pair = tuple(self.position.rotate(g, t, head_dim=self.head_dim) for t in qkv[:2])
        if self.qk_norm == "unit":
            pair = tuple(self._unit(g, t) for t in pair)
        q, *rest = pair
        if self.query_temperature is not None:
            q = g.query_temperature(q, scale=self.query_temperature.scale, floor=self.query_temperature.floor)
        return (q, *rest, *(self._turned_value(g, v) for v in qkv[2:]))

    def _turned_value(self, g: Builder, v: Value) -> Value:
        turned = self.position.rotate(g, v, head_dim=self.head_dim) if self.rotary_value else v
        if self.rotary_value and turned is v:
            raise GraphError(f"{g.path}: rotary_value turns nothing: the position is {self.position.kind_name}")
        return turned

    def _unit(self, g: Builder, x: Value) -> Value:
        return g.rms_norm("", x, eps=self.norm.epsilon(), head_dim=self.head_dim, weight=False)

    def _attending(self, g: Builder, x: Value) -> dict[str, Any]:
        if self.position.attends:
            raise GraphError(f"{g.path}: layers can't share keys and values under position {self.position.kind_name}")
        scale = self._scale(g, x.width)
        return {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "scale": scale,
            "window": self.sliding_window,
            "chunk": self.attention_chunk_size,
            "sinks": self.sink_logits,
            "soft_cap": self.attn_logit_softcapping,
            "slopes": self.position.bias(g, num_heads=self.num_heads, scale=scale),
            "bias": self.position.scores(g, num_heads=self.num_heads),
        }

    def cross(self, g: Builder, x: Value, memory: Value) -> Value:
        q, k, v = self._projected(g, x, memory)
        if self.qk_norm == "unit":
            q, k = (self._unit(g, t) for t in (q, k))
        only_self = ("sliding_window", "attention_chunk_size", "sink_logits", "query_temperature", "rotary_value")
        if stated := [name for name in only_self if getattr(self, name)]:
            raise GraphError(
                f"{g.path}: {', '.join(stated)} of gqa say what a token sees of its own text, not of an encoder's"
            )
        o = g.cross_attention(
            "attention",
            q,
            k,
            v,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            scale=self._scale(g, x.width),
            soft_cap=self.attn_logit_softcapping,
        )
        return self._out(g, x, o)

    def _projected(self, g: Builder, x: Value, read: Value) -> tuple[Value, Value, Value]:
        """Queries of x, keys and values of what is read, normed where they are before they turn."""
        q, kv_width = self._plain_queries(g, x), self.num_kv_heads * self.head_dim
        k_bias = self.qkv_bias if self.k_bias is None else self.k_bias
        k = g.linear("k_proj", read, kv_width, bias=k_bias, axis="kv_heads")
        v = g.linear("v_proj", read, kv_width, bias=self.qkv_bias, axis="kv_heads")
        return self._normed(g, "q_norm", q), self._normed(g, "k_norm", k), v

    def _queries(self, g: Builder, x: Value) -> Value:
        """Queries of x, normed where they are before they turn."""
        return self._normed(g, "q_norm", self._plain_queries(g, x))

    def _plain_queries(self, g: Builder, x: Value) -> Value:
        return g.linear("q_proj", x, self.num_heads * self.head_dim, bias=self.qkv_bias, axis="heads")

    def _normed(self, g: Builder, name: str, x: Value) -> Value:
        if self.qk_norm not in ("head", "width"):
            return x
        y = self.norm.define(g, name, x, head_dim=self.head_dim if self.qk_norm == "head" else None)
        if y is x:
            raise GraphError(
                f"qk_norm {self.qk_norm} norms nothing: the norm is {self.norm.kind_name}; state the mixer's"
            )
        return y

    def _out(self, g: Builder, x: Value, o: Value) -> Value:
        if self.output_gate:
            o = g.mul(o, g.sigmoid(g.linear("gate_proj", x, self.num_heads * self.head_dim, axis="heads")))
        return g.linear("o_proj", o, x.width, bias=self.o_bias)

    def _scale(self, g: Builder, hidden_size: int) -> float:
        names = {**self.numbers(), "hidden_size": hidden_size}
        scale = self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale.resolve(names)
        return scale / (g.layer_index + 1) if self.scale_attn_by_inverse_layer_idx else scale


def _text(value: Any) -> str:
    return "none" if value is None else str(value)
