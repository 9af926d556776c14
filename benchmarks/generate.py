"""Greedy decode of a 100 M Llama on torch's CPU: archc, transformers with both caches and litgpt, equal weights, taking turns.

python benchmarks/generate.py [--lengths 128,1024] [--new-tokens 64] [--rounds 5] [--threads 2] [--dtype float32] [--compile]

Every peer writes by its own loop, as its users call it: archc.generate, transformers' generate, litgpt's generate_fn. A rate is
of the tokens after the first, so that neither the prompt nor what is made for it counts. All must write the same tokens, or it
is said how many are the same. litgpt and what it imports go into .bench-venv/litgpt, beside the packages that it would replace.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from peer_env import FOLDER
from peers import SMALL_LLAMA, archc_model, llama_peer, show
from torch import Tensor

import archc

LITGPT = FOLDER / "litgpt"
PACKAGES = (
    *("litgpt==0.5.13", "lightning==2.6.6", "pytorch-lightning==2.6.6", "lightning-utilities==0.15.3"),
    *("torchmetrics==1.9.0", "jsonargparse==4.41.0", "psutil", "typeshed_client", "docstring_parser"),
)
Moment = tuple[float, float]
"""(wall, processor) seconds."""
Run = Callable[[Tensor, int], tuple[list[int], list[Moment]]]
"""(prompt (tokens,), new tokens) to (ids, when each came)."""


def now() -> Moment:
    """This moment."""
    return time.perf_counter(), time.process_time()


def archc_run(model: Any) -> Run:
    """archc's own loop."""

    def run(prompt: Tensor, count: int) -> tuple[list[int], list[Moment]]:
        times: list[Moment] = []
        made = archc.generate(model, prompt.tolist(), max_new_tokens=count, on_token=lambda _: times.append(now()))
        return made.ids[0], times

    return run


class Clock:
    """A streamer that notes when tokens come; the first call is the prompt's."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.times: list[Moment] = []
        self._is_prompt = True

    def put(self, value: Tensor) -> None:
        if not self._is_prompt:
            self.times.append(now())
            self.ids += value.flatten().tolist()
        self._is_prompt = False

    def end(self) -> None:
        """Nothing more comes."""


def transformers_run(model: Any, cache: str | None) -> Run:
    """transformers' generate with a cache of one kind."""

    def run(prompt: Tensor, count: int) -> tuple[list[int], list[Moment]]:
        clock = Clock()
        more = {} if cache is None else {"cache_implementation": cache}
        model.generate(
            prompt.unsqueeze(0),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            streamer=clock,
            **more,
        )
        return clock.ids, clock.times

    return run


def litgpt_model(weights: dict[str, Tensor], dtype: torch.dtype) -> Any:
    """litgpt's model of SMALL_LLAMA with archc's weights; the package is installed where it is missing."""
    if not (LITGPT / "litgpt").is_dir():
        words = ["install", "--quiet", "--no-deps", "--target", str(LITGPT), *PACKAGES]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    # Last, so that nothing of it stands before the project's own packages.
    sys.path.append(str(LITGPT))
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(
        name="small-llama",
        n_layer=12,
        n_head=12,
        n_query_groups=4,
        n_embd=768,
        head_size=64,
        norm_class_name="RMSNorm",
        norm_eps=1e-5,
        mlp_class_name="LLaMAMLP",
        intermediate_size=2048,
        bias=False,
        rotary_percentage=1.0,
        parallel_residual=False,
        vocab_size=32000,
        padded_vocab_size=32000,
        block_size=4096,
    )
    model = GPT(config).to(dtype).eval()
    names = {"wte": "embed_tokens", "ln_f": "norm"}
    parts = {
        "attn.proj": "mixer.o_proj",
        "mlp.fc_1": "ffn.gate_proj",
        "mlp.fc_2": "ffn.up_proj",
        "mlp.proj": "ffn.down_proj",
    }
    parts |= {"norm_1": "mixer_norm", "norm_2": "ffn_norm"}
    state = {"lm_head.weight": weights["embed_tokens.weight"]}
    state |= {f"transformer.{theirs}.weight": weights[f"{ours}.weight"] for theirs, ours in names.items()}
    for layer in range(12):
        place, ours = f"transformer.h.{layer}", f"layers.{layer}"
        state |= {f"{place}.{part}.weight": weights[f"{ours}.{name}.weight"] for part, name in parts.items()}
        heads = [weights[f"{ours}.mixer.{name}_proj.weight"] for name in "qkv"]
        state[f"{place}.attn.qkv.weight"] = torch.cat(heads)
    model.load_state_dict(state)
    return model


def litgpt_run(weights: dict[str, Tensor], dtype: torch.dtype) -> Run:
    """litgpt's loop over its own model; the cache is as long as prompt and answer."""
    model = litgpt_model(weights, dtype)
    from litgpt.generate.base import generate_fn

    @torch.no_grad()
    def run(prompt: Tensor, count: int) -> tuple[list[int], list[Moment]]:
        length = len(prompt) + count
        model.max_seq_length = length
        model.set_kv_cache(batch_size=1, max_seq_length=length, dtype=dtype)
        ids: list[int] = []
        times: list[Moment] = []
        for token in generate_fn(model, prompt, length, temperature=0.0, include_prompt=False, include_eos=True):
            times.append(now())
            ids.append(int(token))
        model.clear_kv_cache()
        return ids, times

    return run


def transformers_model(weights: dict[str, Tensor], dtype: torch.dtype) -> Any:
    """transformers' model of the same weights."""
    model: Any = llama_peer().to(dtype).eval()
    state: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        theirs = name.replace(".mixer.", ".self_attn.").replace(".ffn.", ".mlp.")
        theirs = theirs.replace("mixer_norm", "input_layernorm").replace("ffn_norm", "post_attention_layernorm")
        state[f"model.{theirs}"] = tensor
    state["lm_head.weight"] = weights["embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def compare(runs: dict[str, Run], prompt: Tensor, *, count: int, rounds: int) -> list[tuple[str, str, str]]:
    """A row for each, archc first: tokens a second, and how many times as fast archc is, by the clock and by processor time."""
    said = {name: run(prompt, count)[0] for name, run in runs.items()}
    walls: dict[str, list[float]] = {name: [] for name in runs}
    processors: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            _, times = runs[name](prompt, count)
            for found, first, last in zip((walls, processors), times[0], times[-1], strict=True):
                found[name].append((last - first) / (count - 1))
    wall, processor = (
        {name: statistics.median(values) for name, values in found.items()} for found in (walls, processors)
    )
    rows: list[tuple[str, str, str]] = []
    for name in runs:
        same = next((at for at, (a, b) in enumerate(zip(said["archc"], said[name], strict=True)) if a != b), count)
        note = "" if same == count else f", first {same} tokens the same"
        ratio = f"{wall[name] / wall['archc']:.2f}x, {processor[name] / processor['archc']:.2f}x (target > 1.0{note})"
        spread = f"{1 / max(walls[name]):.1f} to {1 / min(walls[name]):.1f}"
        cell = f"{1 / wall[name]:.1f} tok/s ({spread}), {1e3 * processor[name]:.1f} ms"
        rows.append((f"{name} after {len(prompt)} tokens", cell, "" if name == "archc" else ratio))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", default="128,1024")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument(
        "--compile", action="store_true", help="archc under torch.compile too, which takes minutes first"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    ours = archc_model(SMALL_LLAMA, dtype).eval()
    weights = {name: tensor.detach() for name, tensor in ours.named_parameters()}
    # Random weights of the usual size write one token over and over: larger ones write many, and peers can be told apart.
    with torch.no_grad():
        for tensor in weights.values():
            if tensor.dim() > 1:
                tensor.mul_(2)
    theirs = transformers_model(weights, dtype)
    runs = {
        "archc": archc_run(ours),
        "transformers, dynamic cache": transformers_run(theirs, None),
        "transformers, static cache": transformers_run(theirs, "static"),
        "litgpt": litgpt_run(weights, dtype),
    }
    if options.compile:
        runs["archc, compiled"] = archc_run(torch.compile(ours))
    rows = [("what", "decode (slowest to fastest round), processor time a token", "archc over it: wall, processor")]
    for length in (int(text) for text in options.lengths.split(",")):
        prompt = torch.randint(3, 32000, (length,), generator=torch.Generator().manual_seed(length))
        rows += compare(runs, prompt, count=options.new_tokens, rounds=options.rounds)
    show(f"Greedy decode, one sequence, {options.dtype}, {options.threads} threads", rows)


if __name__ == "__main__":
    main()
