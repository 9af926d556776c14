"""What surrounds the open stack, and the builder's functions for softmax attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from archc.errors import GraphError
from archc.graph.builder import Tracer
from archc.ir.values import MODEL_DTYPE, Value
from archc.ops.attention import Attention, LatentAttention
from archc.ops.masked_attention import BidirectionalAttention, CrossAttention
from archc.ops.shared_attention import SharedAttention


class AttentionVocabulary(Tracer):
    """Softmax attention under the open stack's mask.

    ``cache_dtype`` and ``state_dtype`` are those of the cache policy that rules the open mixer, ``kept`` are the newest and
    the first tokens that it keeps where it forgets others, ``norm`` places the norm
    that rules the open layer. ``max_position_embeddings`` is the length that the model is made for, where the spec says it,
    ``num_layers`` how many layers the open stack has.

    ``mask`` is what a token of the open stack sees: causal, bidirectional or prefix. ``padding`` is the model's input
    (batch, seq) that is 1 for tokens and 0 for padding, where the open stack is bidirectional and may be padded;
    ``prefix_length`` the input (batch,) of a stack with a prefix. ``memory`` is the encoder's output
    (batch, source, width) while a decoder is open, ``memory_padding`` its padding; ``embedded`` are the embedded tokens, ``ids``
    (batch, seq) those of the open stack where it reads ids, each below ``num_ids``.
    """

    def __init__(self, *, max_position_embeddings: int | None = None, has_tokens: bool = True) -> None:
        super().__init__(has_tokens=has_tokens)
        self.max_position_embeddings = max_position_embeddings
        self.cache_dtype = MODEL_DTYPE
        self.kept: tuple[int, int] | None = None
        self.state_dtype = "float32"
        self.norm: Callable[[str, Value], Value] = self._no_norm
        self.num_layers = 0
        self.mask = "causal"
        self.padding: Value | None = None
        self.prefix_length: Value | None = None
        self.memory: Value | None = None
        self.memory_padding: Value | None = None
        self.embedded: Value | None = None
        self.ids: Value | None = None
        self.num_ids = 0

    def _no_norm(self, name: str, x: Value) -> Value:
        raise GraphError(f"{self.path}: {name}: no norm rules here")

    def attention(
        self,
        name: str,
        q: Value,
        k: Value,
        v: Value,
        *,
        num_heads: int,
        num_kv_heads: int,
        scale: float,
        window: int | None = None,
        chunk: int | None = None,
        sinks: bool = False,
        soft_cap: float | None = None,
        slopes: Sequence[float] | None = None,
        bias: Value | None = None,
    ) -> Value:
        """Softmax attention under the open stack's mask, (batch, seq, heads x value_dim); causal over its own cache.

        ``bias`` (batch or 1, heads, seq, keys) is added to the scores; it is minus infinity where a token sees nothing.

        Raises:
            GraphError: a bidirectional stack, or one with a prefix, has no form of what is asked for.
        """
        if self.mask == "bidirectional":
            if chunk is not None or sinks:
                raise GraphError(f"{self.path}: {name}: chunks and sinks belong to causal attention")
            return self._bidirectional(
                name,
                q,
                k,
                v,
                num_heads,
                num_kv_heads,
                scale,
                window=window,
                soft_cap=soft_cap,
                slopes=slopes,
                bias=bias,
            )
        return self._causal(
            Attention,
            name,
            (q, k, v),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            scale=scale,
            window=window,
            chunk=chunk,
            sinks=sinks,
            soft_cap=soft_cap,
            slopes=slopes,
            bias=bias,
        )[0]

    def attention_and_rows(
        self, name: str, q: Value, k: Value, v: Value, **keywords: Any
    ) -> tuple[Value, Value, Value]:
        """(``attention``, the keys, the values that its tokens attend to, for ``shared_attention`` of later layers).

        Raises:
            GraphError: a bidirectional stack keeps no rows.
        """
        o, keys, values = self._causal(Attention, name, (q, k, v), shares=True, **keywords)
        return o, keys, values

    def shared_attention(self, name: str, q: Value, keys: Value, values: Value, **keywords: Any) -> Value:
        """``attention``, with its keywords, over the rows of an earlier layer's ``attention_and_rows``; it keeps nothing.

        Raises:
            GraphError: the rows are not what this attention sees.
        """
        return self._causal(SharedAttention, name, (q, keys, values), **keywords)[0]

    def _causal(
        self,
        form: type[Attention],
        name: str,
        qkv: tuple[Value, Value, Value],
        *,
        num_heads: int,
        num_kv_heads: int,
        scale: float,
        window: int | None,
        chunk: int | None,
        sinks: bool,
        soft_cap: float | None,
        slopes: Sequence[float] | None,
        bias: Value | None,
        shares: bool = False,
    ) -> tuple[Value, ...]:
        if self.mask == "bidirectional":
            raise GraphError(f"{self.path}: {name}: a bidirectional stack keeps no keys and values to share")
        window, sink_tokens = self._reach(name, window, chunk)
        prefix = self.prefix_length if self.mask == "prefix" and bias is None else None
        if (prefix is not None or bias is not None) and (window is not None or chunk is not None):
            what = "a prefix" if bias is None else "a bias on the scores"
            raise GraphError(f"{self.path}: {name}: {what} needs the rows of all tokens, a window forgets some")
        heads = 1 if issubclass(form, SharedAttention) else num_kv_heads
        op = form(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            key_dim=qkv[1].width // heads,
            value_dim=qkv[2].width // heads,
            scale=scale,
            window=window,
            sink_tokens=sink_tokens,
            chunk=chunk,
            sinks=sinks,
            soft_cap=soft_cap,
            slopes=None if slopes is None else tuple(slopes),
            has_prefix=prefix is not None,
            has_bias=bias is not None,
            shares=shares,
            cache_dtype=self.cache_dtype,
        )
        further = (value for value in (prefix, bias) if value is not None)
        return self.emit(op, (*qkv, *further), name=name)

    def _bidirectional(
        self,
        name: str,
        q: Value,
        k: Value,
        v: Value,
        num_heads: int,
        num_kv_heads: int,
        scale: float,
        *,
        window: int | None,
        soft_cap: float | None,
        slopes: Sequence[float] | None,
        bias: Value | None,
    ) -> Value:
        padding = self.padding if bias is None else None
        op = BidirectionalAttention(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            key_dim=k.width // num_kv_heads,
            value_dim=v.width // num_kv_heads,
            scale=scale,
            window=window,
            soft_cap=soft_cap,
            slopes=None if slopes is None else tuple(slopes),
            has_padding=padding is not None,
            has_bias=bias is not None,
        )
        further = (value for value in (padding, bias) if value is not None)
        return self.emit(op, (q, k, v, *further), name=name)[0]

    def cross_attention(
        self,
        name: str,
        q: Value,
        k: Value,
        v: Value,
        *,
        num_heads: int,
        num_kv_heads: int,
        scale: float,
        soft_cap: float | None = None,
    ) -> Value:
        """Softmax attention of q (batch, seq, …) over keys and values (batch, source, …) of an encoder, which it keeps."""
        op = CrossAttention(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            key_dim=k.width // num_kv_heads,
            value_dim=v.width // num_kv_heads,
            scale=scale,
            soft_cap=soft_cap,
            has_padding=self.memory_padding is not None,
            cache_dtype=self.cache_dtype,
        )
        further = () if self.memory_padding is None else (self.memory_padding,)
        return self.emit(op, (q, k, v, *further), name=name)[0]

    def _reach(self, name: str, window: int | None, chunk: int | None) -> tuple[int | None, int]:
        """The window of an attention and the first tokens that it never forgets, under the cache policy of the open mixer.

        Raises:
            GraphError: the attention's own reach and the policy's are not one window.
        """
        if self.kept is None:
            return window, 0
        newest, first = self.kept
        if chunk is not None or (window is not None and (first or window <= newest)):
            raise GraphError(f"{self.path}: {name}: sees less than its cache policy keeps; state the policy elsewhere")
        return newest, first

    def latent_attention(
        self,
        name: str,
        q: Value,
        latent: Value,
        key: Value,
        *,
        num_heads: int,
        nope_dim: int,
        value_dim: int,
        scale: float,
    ) -> Value:
        """Latent attention over its own cache of latent rows, (batch, seq, heads x value_dim)."""
        window, sink_tokens = self._reach(name, None, None)
        op = LatentAttention(
            num_heads=num_heads,
            kv_lora_rank=latent.width,
            nope_dim=nope_dim,
            rope_dim=key.width,
            value_dim=value_dim,
            scale=scale,
            window=window,
            sink_tokens=sink_tokens,
            cache_dtype=self.cache_dtype,
        )
        return self.emit(op, (q, latent, key), name=name)[0]
