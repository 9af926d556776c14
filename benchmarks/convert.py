"""Time of archc convert beside cp, and of loading beside reading the file and beside transformers.

python benchmarks/convert.py [--gigabytes 2] [--rounds 3] [--folder PLACE] [--load]

The checkpoint is random, in bfloat16, of the shape of a small Llama (every tensor is one weight) and of a Phi-3 (queries,
keys and values, and gate and up, are one tensor each, to be taken apart). Rounds take turns. Every round ends with the
bytes on the disk (fsync), for the copy and the conversion alike. Before it, the source is read once, so that both start
from the same cache; with --cold it is dropped from it instead (posix_fadvise), so that both read the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from archc.checkpoint.convert import to_archc
from archc.checkpoint.importing import import_config
from archc.checkpoint.opening import Model, import_folder
from archc.checkpoint.writing import Writer

HIDDEN, INNER, VOCABULARY = 2048, 5632, 32000
_PIECE_BYTES = 16 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--load", action="store_true", help="into torch too, beside transformers")
    options = parser.parse_args()
    for family in ("llama", "phi3"):
        with tempfile.TemporaryDirectory(dir=options.folder) as place:
            measure(family, Path(place), options)


def measure(family: str, place: Path, options: argparse.Namespace) -> None:
    source = checkpoint(family, place / "in", options.gigabytes)
    size_bytes = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    imported = import_folder(source)
    ways: dict[str, Callable[[], None]] = {
        "cp": lambda: copy(source, place / "out"),
        "convert": lambda: void(to_archc(source, place / "out", imported)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            prepare(source, cold=options.cold)
            start = time.perf_counter()
            way()
            flush(place / "out")
            seconds[name].append(time.perf_counter() - start)
            shutil.rmtree(place / "out")
    print(f"\n{family}: {size_bytes / 1e9:.2f} GB, {'cold' if options.cold else 'warm'}, {options.rounds} rounds")
    report(seconds, size_bytes, against="cp")
    if options.load:
        load(source, size_bytes, options.rounds)


def load(source: Path, size_bytes: int, rounds: int) -> None:
    """Into a model that is there, and from the folder to a model whose every page is in memory, beside transformers."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    import archc

    disable_progress_bar()
    model = archc.build(import_folder(source).spec, device="cpu", dtype="bfloat16")

    def ours() -> torch.nn.Module:
        built = archc.build(import_folder(source).spec, device="cpu", dtype="bfloat16")
        return archc.load_weights(built, source)

    ways: dict[str, Callable[[], object]] = {
        "read": lambda: prepare(source, cold=False),
        "load_weights": lambda: archc.load_weights(model, source),
        "from_pretrained": lambda: touched(AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)),
        "archc": lambda: touched(ours()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    report({name: seconds[name] for name in ("read", "load_weights")}, size_bytes, against="read")
    report({name: seconds[name] for name in ("from_pretrained", "archc")}, size_bytes, against="from_pretrained")


def touched(model: Any) -> None:
    """Look at every page of the weights: a mapped file is not loaded before that."""
    for tensor in model.parameters():
        tensor.detach().view(-1)[::1024].sum()


def report(seconds: dict[str, list[float]], size_bytes: int, *, against: str) -> None:
    base, best = statistics.median(seconds[against]), min(seconds[against])
    for name, found in seconds.items():
        middle = statistics.median(found)
        print(
            f"  {name:15} {middle:7.3f} s ({min(found):.3f} to {max(found):.3f})  {size_bytes / middle / 1e9:6.2f} GB/s"
            f"  {base / middle:5.2f} of the speed of {against}, best rounds {best / min(found):5.2f}"
        )


def checkpoint(family: str, folder: Path, gigabytes: float) -> Path:
    """A random checkpoint of about so many bytes, every byte drawn, so that no zeros are skipped."""
    folder.mkdir()
    layer_bytes = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
    config = {
        "model_type": family,
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": max(1, round((gigabytes * 1e9 - 4 * VOCABULARY * HIDDEN) / layer_bytes)),
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    parts = Model.of(import_config(folder)).plan().parts
    writer = Writer(
        folder, {part.theirs: ("BF16", part.shape_there) for part in parts}, shard_bytes=5 * 10**9, metadata={}
    )
    writer.close()
    piece = os.urandom(_PIECE_BYTES)
    for file in folder.glob("*.safetensors"):
        with file.open("r+b") as stream:
            stream.seek(0)
            end = 8 + int.from_bytes(stream.read(8), "little")
            stream.seek(end)
            left = file.stat().st_size - end
            while left:
                left -= stream.write(piece[: min(left, len(piece))])
    return folder


def copy(source: Path, out: Path) -> None:
    out.mkdir()
    subprocess.run(["cp", *map(str, source.glob("*.safetensors")), str(out)], check=True)


def prepare(source: Path, *, cold: bool) -> None:
    buffer = bytearray(_PIECE_BYTES)
    for file in source.glob("*.safetensors"):
        with file.open("rb", buffering=0) as stream:
            if cold:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                continue
            while stream.readinto(buffer):
                pass


def flush(folder: Path) -> None:
    for file in folder.iterdir():
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def void(value: object) -> None:
    """Where a way gives something back."""


if __name__ == "__main__":
    main()
