"""Places attention by a form of scores under the mask of the open stack."""

from __future__ import annotations

from archc.errors import GraphError
from archc.graph.attention import AttentionVocabulary
from archc.ir.values import Value
from archc.ops.score import BidirectionalScoreAttention, CrossScoreAttention, ScoreAttention, ScoreForm


def attend_by(
    g: AttentionVocabulary,
    name: str,
    form: ScoreForm,
    q: Value,
    k: Value,
    v: Value,
    *,
    num_heads: int,
    cross: bool = False,
) -> Value:
    """Attention of q (batch, seq, …) over k and v, (batch, seq, heads x value_dim): among a stack's own tokens, or an encoder's.

    What fused kernels compute becomes ``g.attention`` or ``g.cross_attention``.

    Raises:
        GraphError: a stack with a prefix stands under a cache policy that forgets.
    """
    if form.is_plain:
        attend = g.cross_attention if cross else g.attention
        return attend(name, q, k, v, num_heads=num_heads, num_kv_heads=num_heads, scale=form.scale)
    key_dim, value_dim = k.width // num_heads, v.width // num_heads
    padding = g.memory_padding if cross else g.padding
    further = () if padding is None else (padding,)
    if cross:
        crossing = CrossScoreAttention(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            scale=form.scale,
            meeting=form.meeting,
            function=form.function,
            weighing=form.weighing,
            has_padding=padding is not None,
            cache_dtype=g.cache_dtype,
        )
        return g.emit(crossing, (q, k, v, *further), name=name)[0]
    if g.mask == "bidirectional":
        whole = BidirectionalScoreAttention(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            scale=form.scale,
            meeting=form.meeting,
            function=form.function,
            weighing=form.weighing,
            has_padding=padding is not None,
        )
        return g.emit(whole, (q, k, v, *further), name=name)[0]
    newest, first = (None, 0) if g.kept is None else g.kept
    prefix = g.prefix_length if g.mask == "prefix" else None
    if prefix is not None and newest is not None:
        raise GraphError(f"{g.path}: {name}: a prefix needs the rows of all tokens, a window forgets some")
    op = ScoreAttention(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        scale=form.scale,
        window=newest,
        sink_tokens=first,
        meeting=form.meeting,
        function=form.function,
        weighing=form.weighing,
        has_prefix=prefix is not None,
        cache_dtype=g.cache_dtype,
    )
    return g.emit(op, (q, k, v, *(() if prefix is None else (prefix,))), name=name)[0]
