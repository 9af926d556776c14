"""Training data: MB/s of tokenising, rows/s of batches, memory of both.

    python benchmarks/training_data.py [--megabytes 50] [--rows 100000000]

The text is archc's sample text (English and Chinese), repeated. Tokenising is one process with as many threads as the tokenizers
library takes (RAYON_NUM_THREADS); batches are made on one thread and read back from the page cache. ``--rows`` times the
permutation of an epoch of so many rows.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from archc.expansion import expand
from archc.generation.text import Text
from archc.spec.load import load_spec
from archc.training.data.opening import open_data
from archc.training.data.order import Order, Part
from archc.training.data.vocabulary import vocabularies_of
from archc.training.objectives.choosing import objective_for
from archc.training.options import TrainOptions
from archc.training.sample_text import sample_text

STEPS = 20
ENCODER = ["head={kind: mlm, activation: gelu}", "embedding.tie_word_embeddings=true"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--rows", type=int, default=0)
    args = parser.parse_args()
    text = sample_text(characters=1_000_000)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with (folder / "text.txt").open("w") as file:
            for _ in range(args.megabytes * 1_000_000 // len(text.encode())):
                file.write(text)
        for kind in ("bytes", "char", "bpe"):
            _tokenise(folder, kind, text)
        _batches(folder)
    print(f"peak memory {_memory_mib():,} MiB")
    if args.rows:
        begin = time.perf_counter()
        Order(Part(args.rows), 0).numbers(0, 1)
        print(f"an order of {args.rows:,} rows: {time.perf_counter() - begin:.1f} s, {_memory_mib():,} MiB at most")


def _spec(kind: str) -> str:
    sized = "" if kind == "bytes" else ", vocab_size: 2000, unk_token_id: 0"
    return f"tokenizer={{kind: {kind}{sized}}}"


def _tokenise(folder: Path, kind: str, text: str) -> None:
    spec = load_spec("tiny-llama", [_spec(kind)])
    made = spec.tokenizer.load(".") if kind == "bytes" else spec.tokenizer.train([text[:100_000]])
    if kind == "bpe":
        made.add_special_tokens(["[MASK]"])
        made.save(str(folder / "tokenizer.json"))
        spec = load_spec("tiny-llama", ["tokenizer.vocab_size=2001"])
    size_mb = (folder / "text.txt").stat().st_size / 1e6
    begin, cpu = time.perf_counter(), time.process_time()
    tokens = open_data(folder / "text.txt", vocabularies=vocabularies_of(spec, Text(made)), cache=folder / kind)
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    print(
        f"{kind:6} {size_mb / wall_s:6.2f} MB/s, {size_mb / cpu_s:6.2f} MB/s a core, {len(tokens):,} tokens of {size_mb:.0f} MB"
    )


def _batches(folder: Path) -> None:
    options = TrainOptions(steps=STEPS, seq_len=512, batch_size=256)
    causal = load_spec("tiny-llama", ["tokenizer.vocab_size=2001"])
    masked = load_spec("bert-base-uncased", [*ENCODER, "tokenizer={kind: external, vocab_size: 2001}"])
    for name, spec in (("causal", causal), ("masked", masked)):
        tokens = open_data(folder / "bpe", vocabularies=vocabularies_of(spec, None), cache=folder / "unused")
        objective = objective_for(expand(spec), spec, tokens, options)
        objective.batch(1, range(1))
        begin = time.perf_counter()
        for step in range(1, STEPS + 1):
            objective.targets(step)
            objective.batch(step, range(options.batch_size))
        took_s = time.perf_counter() - begin
        rows = STEPS * options.batch_size
        print(
            f"{name:6} {rows / took_s:8,.0f} rows/s of {options.seq_len}, {rows * options.seq_len / took_s / 1e6:.1f} M tokens/s"
        )


def _memory_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    main()
