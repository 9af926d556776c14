"""Native sparse attention: blocks of keys compressed to a row each, whose scores choose the blocks that are read in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, CAPACITY, PAST, TOTAL, Dim, ceil_div, minimum, product
from archc.ir.tape import Held, Tape
from archc.ir.values import MODEL_DTYPE, Growth, Param, Role, State, TensorType
from archc.ops.blocks import chosen_pairs_twice, compressed_pairs_twice, compressed_rows, is_sliced
from archc.ops.softmax import attend_new, for_products, fused, joined_heads, to_heads


@op
class NativeSparseAttention(Op):
    """Two branches of native sparse attention (NSA, arXiv 2502.11089); the window is an ``Attention`` of its own.

    Inputs (q, compressed k, compressed v, k, v): queries of both branches, keys and values of the compressed branch before
    they are compressed, keys and values of the selected one. Outputs (compressed, selected), each heads x value_dim wide.

    * compressed: every ``compress_stride`` tokens a block of ``compress_block_size`` becomes one key and one value,
      ``W2 silu(W1 (rows + position))`` over the block's rows side by side, ``compress_intermediate_size`` wide inside, one map
      for all heads. A token sees the blocks that end no later than itself; before the first of those this branch is 0.
    * selected: the shares p of the compressed branch, summed over the heads of a group, score the blocks of
      ``select_block_size``: each compressed block counts once a stride that it shares with the selected one (equation 9 with
      indices from 1). ``num_initial_blocks`` and ``num_local_blocks``, the token's own among them, are always in; the best
      others make up ``num_selected_blocks``. The choice has no gradient.

    The cache holds the keys and values of the selected branch, a compressed row a stride, and the last
    ``compress_block_size - 1`` rows of the compressed branch, which wait for their blocks.
    """

    op_name = "native_sparse_attention"
    pieces = (("num_heads", "heads"), ("num_kv_heads", "kv_heads"))
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    compress_block_size: int
    compress_stride: int
    compress_intermediate_size: int
    select_block_size: int
    num_selected_blocks: int
    num_initial_blocks: int
    num_local_blocks: int
    cache_dtype: str = MODEL_DTYPE

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        widths = tuple(kind.width for kind in inputs)
        keys, values = self.num_kv_heads * self.key_dim, self.num_kv_heads * self.value_dim
        want = (self.num_heads * self.key_dim, keys, values, keys, values)
        if widths != want:
            raise GraphError(f"{self.op_name}: q, k, v, k, v are {widths} wide, not {want}")
        if self.num_heads % self.num_kv_heads:
            raise GraphError(
                f"{self.op_name}: {self.num_heads} heads are no multiple of {self.num_kv_heads} key-value heads"
            )
        out = inputs[0].with_width(self.num_heads * self.value_dim, "heads")
        return out, out

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        found: dict[str, Param] = {}
        for name, dim in (("key", self.key_dim), ("value", self.value_dim)):
            rows, hidden = self.compress_block_size, self.compress_intermediate_size
            found[f"{name}_position"] = Param(f"{name}_position", (rows, dim))
            found[f"{name}_up"] = Param(f"{name}_up.weight", (hidden, rows * dim))
            found[f"{name}_down"] = Param(f"{name}_down.weight", (dim, hidden))
        return found

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        rows: Dim = compressed_rows(TOTAL, self.compress_block_size, self.compress_stride)
        held: Dim = ceil_div(CAPACITY, self.compress_stride)
        waiting = self.compress_block_size - 1

        def state(name: str, dim: int, used: Dim, allocated: Dim, *, growth: Growth = "append") -> State:
            role: Role = "convolution" if growth == "fixed" else "kv"
            return State(
                name,
                (BATCH, self.num_kv_heads, used, dim),
                (BATCH, self.num_kv_heads, allocated, dim),
                growth=growth,
                role=role,
                dtype=self.cache_dtype,
                axes=(None, "kv_heads", None, None),
                token_dim=None if growth == "fixed" else 2,
            )

        dims = (("key", self.key_dim), ("value", self.value_dim))
        return {
            **{f"compressed_{name}": state(f"compressed_{name}", dim, rows, held) for name, dim in dims},
            **{
                f"pending_{name}": state(f"pending_{name}", dim, waiting, waiting, growth="fixed") for name, dim in dims
            },
            **{name: state(name, dim, TOTAL, CAPACITY) for name, dim in dims},
        }

    def read_elements(self, role: str, state: State) -> Dim:
        """Of keys and values the chosen blocks only."""
        if role not in ("key", "value"):
            return product(state.used)
        rows = minimum(TOTAL, self.num_selected_blocks * self.select_block_size)
        return BATCH * rows * (self.num_kv_heads * (self.key_dim if role == "key" else self.value_dim))

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        """The map of each block that becomes complete, and two attentions; choosing is elementwise."""
        block, stride, hidden = self.compress_block_size, self.compress_stride, self.compress_intermediate_size
        new = compressed_rows(TOTAL, block, stride) - compressed_rows(PAST, block, stride)
        one_map = 2 * hidden * (block + 1) * (self.key_dim + self.value_dim)
        seen_twice = compressed_pairs_twice(pairs, block, stride) + chosen_pairs_twice(
            pairs, form, self.select_block_size, self.num_selected_blocks
        )
        return BATCH * new * (self.num_kv_heads * one_map) + BATCH * seen_twice * (
            self.num_heads * (self.key_dim + self.value_dim)
        )

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> tuple[Held, Held]:
        dims = (self.key_dim, self.key_dim, self.value_dim)
        q, k, v = (to_heads(tape, x, dim) for x, dim in zip((inputs[0], *inputs[3:]), dims, strict=True))
        small_k = self._mapped(tape, inputs[1], self.key_dim, weights["key_up"], weights["key_down"])
        small_v = self._mapped(tape, inputs[2], self.value_dim, weights["value_up"], weights["value_down"])
        batch, heads, seq, _ = q.shape
        kv_heads = self.num_kv_heads
        sliced = is_sliced(tape, seq, batch * heads * small_k.shape[2] + batch * kv_heads * seq)
        compressed = self._compressed(tape, q, small_k, small_v)
        if tape.number(ceil_div(seq, self.select_block_size)) <= self.num_selected_blocks:
            mask = tape.new((1, 1, seq, seq), "bool") if sliced else None
            return joined_heads(tape, compressed), attend_new(tape, q, k, v, mask, sliced=sliced)
        # Key-value heads become sequences, which copies unless there is one of either.
        merges = kv_heads == 1 or tape.number(batch) == 1
        rows, group = batch * kv_heads, heads // kv_heads if isinstance(heads, int) else 1
        q, k, v = (
            tape.view(x, shape) if merges else tape.copy(x, shape)
            for x, shape in (
                (q, (rows, group, seq, q.width)),
                (k, (rows, 1, seq, k.width)),
                (v, (rows, 1, seq, v.width)),
            )
        )
        o = fused(tape, q, k, v, tape.new((rows, 1, seq, seq), "bool"))
        shape = (batch, heads, seq, v.width)
        is_view = merges and not sliced and o.width == v.width
        selected = tape.view(o, shape) if is_view else tape.copy(o, shape)
        return joined_heads(tape, compressed), joined_heads(tape, selected, is_view=is_view)

    def _mapped(self, tape: Tape, new: Held, width: int, up: Held, down: Held) -> Held:
        """The rows of the compressed branch: a block's rows side by side are kept, as often as blocks share them."""
        batch, seq = new.shape[:2]
        rows = compressed_rows(seq, self.compress_block_size, self.compress_stride)
        shape = (batch, self.num_kv_heads, rows, self.compress_block_size * width)
        # Where no block is complete, nothing is made of the new rows; the map has a gradient all the same.
        has_rows = tape.number(rows) > 0
        blocks = tape.copy(new, shape) if has_rows else tape.new(shape, new.dtype, needs_grad=True)
        return tape.linear(tape.of_input(tape.linear(blocks, up)), down)

    def _compressed(self, tape: Tape, q: Held, k: Held, v: Held) -> Held:
        """``attend_with_shares`` of the torch leaves; its shares choose, and have no gradient."""
        batch, heads, seq, width = q.shape
        kv_heads, rows = self.num_kv_heads, k.shape[2]
        queries = for_products(tape, q, (batch, kv_heads, self.num_heads // kv_heads * seq, width))
        scores = tape.wide(tape.scaled(tape.matmul(queries, k, (batch, heads, seq, rows))))
        hidden = tape.new((1, 1, 1, seq, rows), "bool")
        shares = tape.masked_fill(tape.of_output(tape.masked_fill(scores, hidden)), hidden)
        return tape.matmul(tape.cast(shares, v.dtype), v, (batch, heads, seq, v.width))


@op
class HeadGate(Op):
    """Each head of a value times one number; inputs (x (…, heads x d), gate (…, heads))."""

    op_name = "head_gate"
    pieces = ()

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, gate = inputs
        if x.shape[:-1] != gate.shape[:-1] or x.width % gate.width:
            raise GraphError(f"head_gate: {gate} has no number for each head of {x}")
        if x.axis != gate.axis:
            raise GraphError(f"head_gate: x is cut along {x.axis}, its gate along {gate.axis}")
        return (x,)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.mul(*inputs)
