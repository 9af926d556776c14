"""What attention to chosen blocks of keys costs: pair counts in closed form, and how many rows of each sort there are."""

from __future__ import annotations

from archc.ir.op import Form, Pairs
from archc.ir.size import PAST, SEQ, TOTAL, Dim, ceil_div, minimum
from archc.ir.tape import Tape

SLAB_ELEMENTS = 1 << 26
"""Scores and mask entries that a call holds at once, for all heads and sequences together."""


def whole_blocks(tokens: Dim, block: int) -> Dim:
    """Blocks of ``block`` tokens that are complete."""
    return ceil_div(tokens + 1, block) - 1


def compressed_rows(tokens: Dim, block: int, stride: int) -> Dim:
    """Blocks of ``block`` tokens, one beginning at every ``stride``-th token, that are complete."""
    rows = ceil_div(tokens - block + 1, stride)
    return rows - minimum(rows, 0)


def compressed_pairs_twice(pairs: Pairs, block: int, stride: int) -> Dim:
    """Twice the pairs of ``seq`` new tokens and the compressed rows whose last token is no later than theirs.

    Row i is complete with token ``stride i + block - 1``, so n tokens see it n - stride i - block + 1 times. ``dense``:
    new tokens times all rows there are.
    """
    if pairs == "dense":
        return SEQ * 2 * compressed_rows(TOTAL, block, stride)

    def seen_twice(tokens: Dim) -> Dim:
        rows = compressed_rows(tokens, block, stride)
        return rows * 2 * (tokens - (block - 1)) - (rows * rows - rows) * stride

    return seen_twice(TOTAL) - seen_twice(PAST)


def chosen_pairs_twice(pairs: Pairs, form: Form, block: int, count: int) -> Dim:
    """Twice the pairs of ``seq`` new tokens and the keys of ``count`` chosen blocks, the token's own among them.

    A token at position t sees t mod block + 1 keys of its own block and all of count - 1 earlier ones, or every key where
    there are no more blocks than that: which ones were chosen makes no difference. ``dense``: all rows behind a mask for
    many tokens, the rows of the chosen blocks for one.
    """
    if pairs == "dense":
        return SEQ * 2 * (TOTAL if form == "many" else minimum(TOTAL, count * block))

    def seen_twice(tokens: Dim) -> Dim:
        whole = whole_blocks(tokens, block)
        part, reached = tokens - whole * block, minimum(whole, count)
        own = whole * (block * (block + 1)) + part * part + part
        # Blocks below ``count`` are after all that are before them, later ones after count - 1.
        before_whole = reached * reached - reached + (whole - reached) * (2 * (count - 1))
        return own + before_whole * (block * block) + minimum(whole, count - 1) * part * (2 * block)

    return seen_twice(TOTAL) - seen_twice(PAST)


def earlier_blocks_twice(pairs: Pairs, block: int) -> Dim:
    """Twice the pairs of ``seq`` new tokens and the blocks that lie wholly before their own; ``dense``: before the last."""
    if pairs == "dense":
        return SEQ * 2 * (ceil_div(TOTAL, block) - 1)

    def seen_twice(tokens: Dim) -> Dim:
        whole = whole_blocks(tokens, block)
        return (whole * whole - whole) * block + whole * 2 * (tokens - whole * block)

    return seen_twice(TOTAL) - seen_twice(PAST)


def complete_blocks_twice(pairs: Pairs, block: int, count: int | None = None) -> Dim:
    """Twice the pairs of ``seq`` new tokens and the blocks that are complete with them, or ``count`` of those at most.

    Which ones makes no difference, so it is as if they were the first. ``dense``: new tokens times all complete ones.
    """

    def reached(tokens: Dim) -> Dim:
        whole = whole_blocks(tokens, block)
        return whole if count is None else minimum(whole, count)

    def seen_twice(tokens: Dim) -> Dim:
        rows = reached(tokens)
        return rows * 2 * (tokens - (block - 1)) - (rows * rows - rows) * block

    return SEQ * 2 * reached(TOTAL) if pairs == "dense" else seen_twice(TOTAL) - seen_twice(PAST)


def is_sliced(tape: Tape, seq: Dim, elements_a_token: Dim) -> bool:
    """Whether ``in_slabs`` of the torch leaves takes new tokens a slice at a time, and so joins what comes of them."""
    tokens = tape.number(seq)
    return tokens > 1 and tokens * tape.number(elements_a_token) > SLAB_ELEMENTS
