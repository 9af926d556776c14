"""Compressed attention: several tokens become one entry, and a token reads a window of keys and the entries before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, CAPACITY, TOTAL, Dim, ceil_div, minimum, product
from archc.ir.tape import Held, Tape
from archc.ir.values import MODEL_DTYPE, Param, State, TensorType
from archc.ops.attention import causal_pairs_twice
from archc.ops.blocks import SLAB_ELEMENTS, complete_blocks_twice, whole_blocks
from archc.ops.softmax import attend_spelled, joined_heads, to_heads


@op
class CompressedEntries(Op):
    """Every ``ratio`` tokens one entry (DeepSeek-V4, arXiv 2606.19348); inputs (rows, gates), outputs (batch, entries, dim).

    Entry w is the sum over tokens j of window w, tokens ``ratio w`` to ``ratio w + ratio - 1``, of
    ``softmax_j(gate_j + position_bias_j)`` times row j, a channel at a time in float32; then an RMS norm, and the last
    ``2 len(frequencies)`` channels turn by the position of the window's first token. With ``overlap`` rows and gates are
    2 dim wide, two series [a | b], and entry w mixes series a of window w - 1 with series b of window w; entry 0 has b alone.

    The cache holds an entry a complete window and what later ones need: the last ``ratio - 1`` tokens' rows and gates, and with
    ``overlap`` those of series a over ``2 ratio - 1`` tokens. ``prefix`` begins the names of its states. ``chosen`` are the
    entries that one token reads, where it doesn't read all.
    """

    op_name = "compressed_entries"
    dim: int
    ratio: int
    overlap: bool
    eps: float
    frequencies: tuple[float, ...] = ()
    factor: float = 1.0
    interleaved: bool = False
    prefix: str = ""
    chosen: int | None = None
    cache_dtype: str = MODEL_DTYPE

    @property
    def series(self) -> int:
        """How many rows a token gives."""
        return 2 if self.overlap else 1

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        rows, gates = inputs
        want = self.series * self.dim
        if (rows.width, gates.width) != (want, want):
            raise GraphError(f"{self.op_name}: rows and gates are {rows.width} and {gates.width} wide, not {want}")
        if self.ratio < 2:
            raise GraphError(f"{self.op_name}: an entry stands for 2 tokens or more (found ratio {self.ratio})")
        if 2 * len(self.frequencies) > self.dim:
            raise GraphError(f"{self.op_name}: {2 * len(self.frequencies)} of {self.dim} channels can't turn")
        return (TensorType((rows.shape[0], whole_blocks(TOTAL, self.ratio), self.dim), rows.dtype),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        shape = (self.ratio, self.series * self.dim)
        return {
            "position_bias": Param("position_bias", shape, init="zeros", dtype="float32"),
            "norm_weight": Param("norm_weight", (self.dim,), init="ones"),
        }

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        def state(name: str, used: Dim, held: Dim, width: int, *, grows: bool) -> State:
            return State(
                f"{self.prefix}{name}",
                (BATCH, 1, used, width),
                (BATCH, 1, held, width),
                growth="append" if grows else "fixed",
                role="kv" if grows else "convolution",
                dtype=self.cache_dtype,
                token_dim=2 if grows else None,
            )

        rows, held, waiting = whole_blocks(TOTAL, self.ratio), ceil_div(CAPACITY, self.ratio), self.ratio - 1
        found = {
            "entry": state("entry", rows, held, self.dim, grows=True),
            "pending": state("pending", waiting, waiting, 2 * self.dim, grows=False),
        }
        if self.overlap:
            behind = waiting + self.ratio
            found["overlap"] = state("overlap", behind, behind, 2 * self.dim, grows=False)
        return found

    def read_elements(self, role: str, state: State) -> Dim:
        """Of entries those that one token reads."""
        if role != "entry" or self.chosen is None:
            return product(state.used)
        return BATCH * minimum(whole_blocks(TOTAL, self.ratio), self.chosen) * self.dim

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        batch, seq = inputs[0].shape[:2]
        count = whole_blocks(seq, self.ratio)
        if tape.number(count) == 0:
            return tape.new((batch, 0, self.dim), inputs[0].dtype)
        # Rows and gates of a series lie side by side; in half precision they are widened together.
        shape = (batch, count, self.ratio, self.dim)
        rows: list[Held] = []
        gates: list[Held] = []
        nothing = tape.new((1, count, 1, 1), "bool")
        for number in range(self.series):
            both = tape.wide(tape.cat(inputs, (batch, seq, 2 * self.dim)))
            row, gate = tape.view(both, shape), tape.add(tape.view(both, shape))
            if self.overlap and number == 0:
                row, gate = tape.masked_fill(row, nothing), tape.masked_fill(gate, nothing)
            rows.append(row)
            gates.append(gate)
        met = (batch, count, self.ratio * self.series, self.dim)
        mixed = tape.mul(tape.cat(rows, met), tape.of_output(tape.cat(gates, met)))
        entries = tape.sum(mixed, (batch, count, self.dim))
        entries = tape.rms_norm(entries, tape.wide(weights["norm_weight"]), batch * count)
        if self.frequencies:
            tables = [tape.new((1, count, len(self.frequencies)), "float32") for _ in range(2)]
            entries = tape.fresh((entries,), keeps=tables)
        return tape.cast(entries, inputs[0].dtype)


@op
class CompressedAttention(Op):
    """Softmax over a window of keys and the entries before a token (DeepSeek-V4, arXiv 2606.19348).

    Inputs (q, kv), then (entries) where there are any, then (index q, index weights, index entries) under an indexer. One head
    of keys, which are values at once, serves all heads of queries. ``window`` W: a token sees itself and the W - 1 before
    it. It sees an entry from the last token of its window on; under an indexer the ``topk`` of the largest
    ``sum_h w_h relu(q_h k)`` over ``index_heads`` heads that share the index entry as their key, all where it sees no more; of
    equal scores the earlier wins. Positive factors on the scores change no choice and are left out; they are float32 and have
    no gradient. ``sinks``: one learned logit a head joins the softmax.

    The cache is a ring of W rows. ``few`` gathers the chosen entries, ``many`` masks the others.
    """

    op_name = "compressed_attention"
    pieces = (("num_heads", "heads"),)
    num_heads: int
    head_dim: int
    scale: float
    window: int
    ratio: int | None = None
    index_heads: int = 0
    index_dim: int = 0
    topk: int | None = None
    sinks: bool = True
    cache_dtype: str = MODEL_DTYPE

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        heads, dim = self.num_heads, self.head_dim
        want: tuple[int, ...] = (heads * dim, dim)
        if self.ratio is not None:
            want += (dim,)
        if self.topk is not None:
            want += (self.index_heads * self.index_dim, self.index_heads, self.index_dim)
        widths = tuple(kind.width for kind in inputs)
        if widths != want:
            raise GraphError(
                f"{self.op_name}: q, kv, entries, index q, index weights, index entries are {widths} wide, not {want}"
            )
        return (inputs[0].with_width(heads * dim, "heads"),)

    def ring_rows(self) -> int:
        """Rows of the cache that no text exceeds."""
        return self.window

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        if not self.sinks:
            return {}
        return {"sinks": Param("sinks", (self.num_heads,), axes=("heads",), init="zeros")}

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        return {
            "key": State(
                "key",
                (BATCH, 1, minimum(TOTAL, self.window), self.head_dim),
                (BATCH, 1, self.window, self.head_dim),
                growth="ring",
                role="kv",
                dtype=self.cache_dtype,
                token_dim=2,
            )
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        twice = causal_pairs_twice(pairs, form, window=self.window)
        scored: Dim = 0
        if self.ratio is not None:
            entries = complete_blocks_twice(pairs, self.ratio)
            if self.topk is not None:
                scored = entries * (self.index_heads * (self.index_dim + 1))
                if pairs == "needed" or form == "few":
                    entries = complete_blocks_twice(pairs, self.ratio, self.topk)
            twice = twice + entries
        return BATCH * scored + BATCH * twice * (self.num_heads * 2 * self.head_dim)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        """The choice keeps nothing; keys of a slice of tokens and the entries are one tensor."""
        q, kv = to_heads(tape, inputs[0], self.head_dim), inputs[1]
        entries = inputs[2] if self.ratio is not None else None
        if entries is not None and tape.number(entries.shape[1]) == 0:
            entries = None
        batch, heads, seq, width = q.shape
        parts: list[Held] = []
        for queries, rows in self._slices(tape, batch, seq, 0 if entries is None else entries.shape[1]):
            shape = (batch, 1, rows if entries is None else rows + entries.shape[1], width)
            keys = tape.view(kv, shape) if entries is None else tape.cat((kv, entries), shape)
            part = tape.view(q, (batch, heads, queries, width))
            parts.append(attend_spelled(tape, part, keys, keys, sinks=weights.get("sinks")))
        return joined_heads(tape, parts[0] if len(parts) == 1 else tape.cat(parts, (batch, heads, seq, width)))

    def _slices(self, tape: Tape, batch: Dim, seq: Dim, entries: Dim) -> list[tuple[Dim, Dim]]:
        """(new tokens, rows that they may see) of each slice, as the torch leaf cuts them."""
        tokens, window = tape.number(seq), self.window
        size = max(4 * window, 256)
        heads = self.num_heads + self.index_heads
        elements = tape.number(batch) * heads * (size + window + tape.number(entries))
        elements = max(elements, -(-SLAB_ELEMENTS // size))
        if tokens == 1 or tokens * elements <= SLAB_ELEMENTS:
            return [(seq, seq)]
        step = max(1, SLAB_ELEMENTS // elements)
        found: list[tuple[Dim, Dim]] = []
        for start in range(0, tokens, step):
            stop = min(start + step, tokens)
            found.append((stop - start, stop - (0 if start < window else start - window + 1)))
        return found
