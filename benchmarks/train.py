"""Training on the CPU: archc.train as it is, with its data, loss, clipping and optimizer, against plain loops over peers.

python benchmarks/train.py [--lengths 512,1024,2048] [--rounds 5] [--only llama|hybrid|memory|activations] [--threads 2]
    [--clock wall|cpu]

archc.train runs once a length; between its steps each peer makes one of its own, in turns, so that a slow minute hits all. A
peer's step is what a plain loop does: a row of the same ids, transformers' loss of labels or litgpt's chunked cross-entropy over
all logits, backward, clipping to 1, torch.optim.AdamW (fused) and the loss as a number. All begin their clock before the row is
read. litgpt goes into .bench-venv/litgpt.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from generate import litgpt_model
from peers import SMALL_KIMI, SMALL_LLAMA, archc_model, kimi_peer, llama_peer, show
from torch import Tensor, nn
from torch_models import gemm_flops

import archc
from archc.planning.training.estimate import estimate_training
from archc.testing.activations import kept_bytes
from archc.training.module import TrainingModel
from archc.training.sample_text import sample_text
from archc.training.watching.watcher import Quiet, Record

TARGETS = {512: 3.0, 1024: 4.0, 2048: 6.0}
"""T3: archc over transformers on the hybrid, by length."""
WARM_STEPS = 1
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
OPTIONS: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
CHARACTERS = "{kind: char, vocab_size: 200, unk_token_id: 0}"

Rows = Callable[[int], tuple[Tensor, Tensor]]
"""Number of a step -> ids and targets, (1, length) each."""


class Data:
    """The sample text as characters: a file for archc.train, ids for the loops."""

    def __init__(self, folder: Path) -> None:
        text = sample_text()
        self.file = folder / "text.txt"
        self.file.write_text(text, encoding="utf-8")
        described = SMALL_LLAMA.replace("{kind: external, vocab_size: 32000}", CHARACTERS)
        self.tokenizer = archc.loads_spec(described).tokenizer.train([text])
        self.ids = torch.tensor(self.tokenizer.encode(text).ids)

    def rows(self, length: int) -> Rows:
        """Rows one after the other."""
        count = (len(self.ids) - 1) // length

        def row(number: int) -> tuple[Tensor, Tensor]:
            begin = number % count * length
            piece = self.ids[begin : begin + length + 1].unsqueeze(0)
            return piece[:, :-1], piece[:, 1:]

        return row


def loop(model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor], rows: Rows) -> Callable[[int], float]:
    """One step of a plain loop, which gives its loss."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **OPTIONS)

    def step(number: int) -> float:
        ids, targets = rows(number)
        loss = loss_of(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def transformers_step(model: Any, rows: Rows) -> Callable[[int], float]:
    """A loop over a transformers model. Its labels are the ids themselves, which it shifts."""
    return loop(model, lambda ids, _: model(input_ids=ids, labels=ids, use_cache=False).loss, rows)


def litgpt_step(rows: Rows) -> Callable[[int], float]:
    """A loop over litgpt's model with its own loss, in chunks of 128 tokens as its recipes have it."""
    model = litgpt_model(dict(archc_model(SMALL_LLAMA).state_dict()), torch.float32)
    from litgpt.utils import chunked_cross_entropy

    return loop(model, lambda ids, targets: chunked_cross_entropy(model(ids), targets), rows)


class Turns(Quiet):
    """Notes how long archc.train takes from step to step, all of its loop, and lets the peers make a step after each."""

    def __init__(self, peers: dict[str, Callable[[int], float]], clock: Callable[[], float]) -> None:
        self.peers, self.clock, self.begin = peers, clock, clock()
        self.times: dict[str, list[float]] = {name: [] for name in ("archc", *peers)}

    def on_step(self, record: Record) -> None:
        number, found = int(record["step"] or 0), {"archc": self.clock() - self.begin}
        names = list(self.peers)
        turn = number % max(len(names), 1)
        for name in names[turn:] + names[:turn]:
            begin = self.clock()
            self.peers[name](number)
            found[name] = self.clock() - begin
        if number > WARM_STEPS:
            for name, each_s in found.items():
                self.times[name].append(each_s)
        self.begin = self.clock()

    def median_s(self) -> dict[str, float]:
        """Median seconds of a step."""
        return {name: statistics.median(found) for name, found in self.times.items()}


def archc_steps(spec: str, data: Data, length: int, steps: int, *watchers: Quiet) -> None:
    """archc.train over the text; nothing is kept."""
    place = data.file.with_name("spec.yaml")
    place.write_text(spec)
    archc.train(
        place,
        data=data.file,
        tokenizer=data.tokenizer,
        steps=steps,
        seq_len=length,
        batch_size=1,
        schedule="constant",
        warmup_steps=0,
        watchers=watchers,
        device="cpu",
        **OPTIONS,
    )


def compare(
    title: str,
    spec: str,
    peers: Callable[[Rows], dict[str, Callable[[int], float]]],
    lengths: list[int],
    rounds: int,
    clock: str,
) -> None:
    """Ratios of tokens a second, archc over each peer."""
    rows: list[tuple[str, str, str]] = []
    peak = gemm_flops() if clock == "wall" else None
    with tempfile.TemporaryDirectory() as place:
        data = Data(Path(place))
        for length in lengths:
            turns = Turns(peers(data.rows(length)), CLOCKS[clock])
            archc_steps(spec, data, length, WARM_STEPS + rounds, turns)
            median_s = turns.median_s()
            work = archc.estimate(archc.loads_spec(spec), max_model_len=length).to_json()["flops"]["train_step"]
            share = "" if peak is None else f", {work / median_s['archc'] / peak:.2f} of GEMM"
            for name in turns.peers:
                ratio = median_s[name] / median_s["archc"]
                speeds = f"{length / median_s['archc']:.0f} / {length / median_s[name]:.0f} tok/s{share}"
                target = f"T3 >= {TARGETS.get(length, 3.0)}" if title == "hybrid" else "T6 >= 1.0"
                rows.append((f"{title} {length} over {name}", f"{ratio:.2f}x ({speeds})", target))
    show(f"{title}: archc.train, one sequence a step, float32, {torch.get_num_threads()} threads, {clock} time", rows)


def llama_peers(rows: Rows) -> dict[str, Callable[[int], float]]:
    """Both peers of the llama-like model."""
    return {"transformers": transformers_step(llama_peer(), rows), "litgpt": litgpt_step(rows)}


def memory(length: int) -> None:
    """T4: what a step of ``length`` tokens adds to the peak of a process that makes steps of 16, optimizer states and all."""
    added: dict[str, int] = {}
    for name in ("archc", "transformers"):
        peaks: list[int] = []
        for tokens in (16, length):
            command = [sys.executable, "-W", "ignore", __file__, "--measure", name, "--lengths", str(tokens)]
            said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent).stdout
            peaks.append(int(said.split()[-1]))
        added[name] = peaks[1] - peaks[0]
    gib = {name: f"{value / 2**30:.2f} GiB" for name, value in added.items()}
    ratio = added["archc"] / added["transformers"]
    row = (f"hybrid {length}", f"{ratio:.3f} ({gib['archc']} / {gib['transformers']})", "T4 <= 0.25")
    show(
        "Peak memory of training above weights, gradients and optimizer",
        [("what", "archc over transformers", "target"), row],
    )


def measure(name: str, length: int) -> None:
    """Print the peak resident bytes of a process that makes two steps."""
    with tempfile.TemporaryDirectory() as place:
        data = Data(Path(place))
        if name == "archc":
            archc_steps(SMALL_KIMI, data, length, 2)
        else:
            step = transformers_step(kimi_peer(), data.rows(length))
            for number in (1, 2):
                step(number)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


class Step:
    """A training module's forward and loss, as ``kept_bytes`` runs one."""

    def __init__(self, module: TrainingModel, length: int) -> None:
        self.module, self.ids = module, torch.randint(0, 32000, (1, length))

    def run(self, model: nn.Module) -> Tensor:
        """The loss, with its graph."""
        return self.module({"input_ids": self.ids}, self.ids.roll(-1, 1), torch.tensor(1 / self.ids.numel()))


def activations(length: int) -> None:
    """Bytes that autograd keeps of archc.train's own step, and what ``archc estimate --train --loss fused`` says."""
    rows = [("what", "autograd, estimate", "target")]
    for name, spec in (("llama", SMALL_LLAMA), ("hybrid", SMALL_KIMI)):
        model: Any = archc_model(spec)
        for mode in ("none", "selective", "full"):
            run: Any = Step(TrainingModel(model), length)
            found = kept_bytes(model, run, mode)
            options: dict[str, Any] = {"dtype": "float32", "recompute": mode, "loss": "fused", "kernels": "cpu"}
            rank = estimate_training(archc.loads_spec(spec), max_model_len=length, **options).stages[0]
            assert rank.loss is not None
            said = rank.activation_bytes + rank.loss.saved
            rows.append((f"{name} {length}, recompute {mode}", f"{found:,} B, {said:,} B", "equal"))
    show("Kept from the loss to its backward", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="512,1024,2048")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu, with one thread, on a busy machine")
    parser.add_argument("--only", choices=["llama", "hybrid", "memory", "activations"])
    parser.add_argument("--measure", choices=["archc", "transformers"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lengths = [int(text) for text in options.lengths.split(",")]
    if options.measure:
        measure(options.measure, lengths[0])
        return
    if options.only in (None, "llama"):
        compare("llama", SMALL_LLAMA, llama_peers, lengths, options.rounds, options.clock)
    if options.only in (None, "hybrid"):
        compare(
            "hybrid",
            SMALL_KIMI,
            lambda rows: {"transformers": transformers_step(kimi_peer(), rows)},
            lengths,
            options.rounds,
            options.clock,
        )
    if options.only in (None, "memory"):
        memory(max(lengths))
    if options.only in (None, "activations"):
        activations(max(lengths))


if __name__ == "__main__":
    main()
