"""The ways to run a model that must agree: whole, in calls over a cache, ragged, padded left and right, and its twins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from archc.graph.graph import Graph
from archc.ir.op import Form, Pairs
from archc.ir.size import evaluate
from archc.testing.feeding import BATCH, FIRST, LENGTH, SECOND, SOURCE_LENGTH, Given, by_token, short
from archc.torch_backend.build import new_cache
from archc.torch_backend.step import Step

Outputs = tuple[Tensor, ...]


class Judge:
    """What a model gave for everything at once, and how far other ways to run it may be from that."""

    def __init__(self, graph: Graph, given: Given, whole: Outputs, tolerance: float) -> None:
        self.graph, self.given, self.whole, self.tolerance = graph, given, whole, tolerance
        self.by_token = by_token(graph)
        self.limits = [tolerance * float(each.abs().max()) for each in whole]
        self.names = ["" if len(whole) == 1 else f" of {name}" for name in graph.outputs]

    def close(self, got: Sequence[Tensor], want: Sequence[Tensor], what: str) -> None:
        """Every output is what it should be."""
        assert len(got) == len(want), f"{what}: {len(got)} outputs, not {len(want)}"
        for mine, right, limit, name in zip(got, want, self.limits, self.names, strict=True):
            close(mine, right, limit, f"{what}{name}")

    def check_cached(self, model: nn.Module) -> None:
        """Prefill, a chunk and single tokens over a cache, and over one that was used before."""
        given = self.given
        cache = new_cache(model, batch=BATCH, max_model_len=LENGTH, source_len=SOURCE_LENGTH)
        spans = [(0, FIRST), (FIRST, FIRST + SECOND), *((i, i + 1) for i in range(FIRST + SECOND, LENGTH))]
        for round_ in ("", " over a used cache"):
            parts = [given.part(model, start, stop, Step.at(start, stop - start), cache) for start, stop in spans]
            self.close(self._joined(parts), self.whole, f"prefill, chunk and single steps{round_}")

    def _joined(self, parts: Sequence[Outputs]) -> Outputs:
        """All calls' tokens side by side; of what is one for a text, the last call's."""
        return tuple(
            torch.cat(columns, 1) if has_tokens else columns[-1]
            for columns, has_tokens in zip(zip(*parts, strict=True), self.by_token, strict=True)
        )

    def check_last_only(self, model: nn.Module) -> None:
        """Only the last token = the last of all."""
        want = tuple(
            each[:, -1:] if has_tokens else each for each, has_tokens in zip(self.whole, self.by_token, strict=True)
        )
        self.close(self.given.run(model, last_only=True), want, "last_only")

    def check_ragged(self, model: nn.Module) -> None:
        """Rows that bring different numbers of tokens are what each is alone."""
        given = self.given
        cache = new_cache(model, batch=BATCH, max_model_len=LENGTH + FIRST, source_len=SOURCE_LENGTH)
        past = torch.zeros(BATCH, dtype=torch.int64)
        for lengths in ((FIRST, 4), (2, SECOND), (1, 1), (0, 3)):
            new = torch.tensor(lengths)
            seq = int(new.max())
            cut = {name: _cut(tensor, past, new, seq) for name, tensor in given.by_token.items()}
            call = Given(self.graph, _cut(given.main, past, new, seq), cut, given.source, given.always)
            got = call.part(model, 0, seq, Step.ragged(past, new, seq), cache)
            for row in range(BATCH):
                if new[row]:
                    held, stop = int(past[row]), int(past[row] + new[row])
                    mine, want = self._row(model, got, row, held, stop)
                    self.close(mine, want, f"ragged row {row} over {held} tokens")
            past = past + new

    def _row(self, model: nn.Module, got: Outputs, row: int, held: int, stop: int) -> tuple[Outputs, Outputs]:
        """(what a call gave a row, what that row alone gives) for its tokens held to stop - 1."""
        alone = self.whole if all(self.by_token) else self.given.row(row, tokens=stop).run(model)
        mine: list[Tensor] = []
        want: list[Tensor] = []
        for each, whole, lone, has_tokens in zip(got, self.whole, alone, self.by_token, strict=True):
            mine.append(each[row, : stop - held] if has_tokens else each[row])
            want.append(whole[row, held:stop] if has_tokens else lone[0])
        return tuple(mine), tuple(want)

    def check_padded(self, model: nn.Module) -> None:
        """Ones for a mask are no mask, and padding on either side changes nothing of the tokens beside it."""
        given = self.given
        assert not self.graph.states(), "a bidirectional stack keeps nothing, and the graph has states"
        if "attention_mask" not in self.graph.inputs:
            for row in range(BATCH):
                want = tuple(each[row : row + 1] for each in self.whole)
                self.close(given.row(row).run(model), want, f"row {row} alone")
            return
        ones = torch.ones(given.main.shape[:2], dtype=torch.int64)
        self.close(given.run(model, attention_mask=ones), self.whole, "a mask of ones")
        for left in (False, True):
            counts = short(LENGTH)
            got = given.padded(counts, left=left).run(model)
            for row, count in enumerate(counts):
                start = LENGTH - count if left else 0
                mine = tuple(
                    each[row, start : start + count] if has_tokens else each[row]
                    for each, has_tokens in zip(got, self.by_token, strict=True)
                )
                want = tuple(each[0] for each in given.row(row, tokens=count).run(model))
                self.close(mine, want, f"row {row} padded on the {'left' if left else 'right'}")
            assert all(bool(each.isfinite().all()) for each in got), "what stands for padding is not finite"

    def check_padded_source(self, model: nn.Module) -> None:
        """Padding of an encoder's tokens on either side changes nothing, in one call and over a cache."""
        if "encoder_attention_mask" not in self.graph.inputs:
            return
        counts = short(SOURCE_LENGTH)
        for left in (False, True):
            padded = self.given.padded_source(counts, left=left)
            cache = new_cache(model, batch=BATCH, max_model_len=LENGTH, source_len=SOURCE_LENGTH)
            spans = [(0, FIRST), (FIRST, LENGTH - 1), (LENGTH - 1, LENGTH)]
            parts = [padded.part(model, start, stop, Step.at(start, stop - start), cache) for start, stop in spans]
            ways = {"whole": padded.run(model), "cached": self._joined(parts)}
            for row, count in enumerate(counts):
                want = tuple(each[0] for each in self.given.row(row, source=count).run(model))
                for way, got in ways.items():
                    what = f"row {row} with its source padded on the {'left' if left else 'right'}, {way}"
                    self.close(tuple(each[row] for each in got), want, what)

    def check_twin(self, twin: nn.Module, pairs: Pairs) -> None:
        """The twin gives the same outputs, and torch's counter sees in it the FLOPs that the graph says.

        How long a prefix is, a call says and no graph: counted is one that is empty.
        """
        if "prefix_length" not in self.given.always:
            self._run_twin(twin, pairs, self.given)
            return
        self._run_twin(twin, pairs, self.given, is_counted=False)
        empty = {**self.given.always, "prefix_length": torch.zeros(BATCH, dtype=torch.int64)}
        self._run_twin(twin, pairs, replace(self.given, always=empty), is_judged=False)

    def _run_twin(
        self, twin: nn.Module, pairs: Pairs, given: Given, *, is_judged: bool = True, is_counted: bool = True
    ) -> None:
        calls: list[tuple[int, int, Form]] = [(0, FIRST, "many"), (FIRST, SECOND, "many"), (FIRST + SECOND, 1, "few")]
        cache: dict[str, Tensor] | None = None
        if self.graph.mask == "bidirectional":
            calls = [(0, LENGTH, "many")]
        else:
            cache = new_cache(twin, batch=BATCH, max_model_len=LENGTH, source_len=SOURCE_LENGTH)
        for past, seq, form in calls:
            with FlopCounterMode(display=False) as counter:
                if cache is None:
                    got = given.run(twin)
                else:
                    got = given.part(twin, past, past + seq, Step.at(past, seq), cache)
            if is_judged:
                self._judge_part(got, past, seq, f"the twin that counts {pairs} pairs", is_whole=cache is None)
            want = forward_flops(self.graph, batch=BATCH, seq=seq, past=past, form=form, pairs=pairs)
            seen = counter.get_total_flops()
            assert seen == want or not is_counted, (
                f"{pairs} pairs, {seq} tokens over {past}: the graph says {want} FLOPs, torch counts {seen}"
            )

    def _judge_part(self, got: Outputs, past: int, seq: int, what: str, *, is_whole: bool) -> None:
        """Outputs of some tokens; of what is one for a text there is no part."""
        for mine, whole, has_tokens, limit, name in zip(
            got, self.whole, self.by_token, self.limits, self.names, strict=True
        ):
            if is_whole:
                close(mine, whole, limit, f"{what}{name}")
            elif has_tokens:
                close(mine, whole[:, past : past + seq], limit, f"{what}{name}")


def _cut(tensor: Tensor, past: Tensor, new: Tensor, seq: int) -> Tensor:
    """Each row's next tokens, padded on the right with zeros."""
    padded = torch.zeros(tensor.shape[0], seq, dtype=tensor.dtype)
    for row in range(tensor.shape[0]):
        padded[row, : new[row]] = tensor[row, past[row] : past[row] + new[row]]
    return padded


def close(got: Tensor, want: Tensor, limit: float, what: str) -> None:
    """Two tensors differ by no more than a limit."""
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)} comes out, not {tuple(want.shape)}"
    difference = float((got - want).abs().max())
    assert difference <= limit, f"{what}: values differ by {difference:.1e}, more than {limit:.1e}"


def forward_flops(graph: Graph, *, batch: int, seq: int, past: int, form: Form, pairs: Pairs) -> int:
    """Forward FLOPs of the whole graph, the head on every token; an encoder runs in the first call."""
    source = 0 if past else SOURCE_LENGTH
    env = {"batch": batch, "seq": seq, "past": past, "source": source, "memory": SOURCE_LENGTH}
    return sum(
        evaluate(node.op.flops([value.type for value in node.inputs], form, pairs), env) for _, node in graph.walk()
    )
