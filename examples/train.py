"""The whole promise with a model that learns: a spec and a text, a trained model, an ONNX file, and the same words from both.

    python examples/train.py [OUT] [--quick]

A 3:1 hybrid of KDA and latent attention reads short stories in English and Chinese, character by character, for about two
minutes on two CPU cores. At first it writes noise, then letters, then words, then sentences, then the Chinese of what it has just
said in English. It is exported and run by onnxruntime, which writes the same. ``--quick`` is a quarter of a minute, and learns
less.

Exit 1: the loss did not fall as far as it should, or the two texts differ.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import archc
from archc import registry
from archc.spec.resolved import resolved
from archc.training.sample_text import sample_text
from archc.training.watching.watcher import Quiet, Record, RunInfo, Sample

SPEC = Path(__file__).with_name("char-hybrid.yaml")
PROMPTS = ("A black cat", "Tom has six", "Anna likes tea", "里奥有五")
NEW_TOKENS = 100


@dataclass(frozen=True)
class Plan:
    """How long to train. The loss, in nats a character, must end below ``bound``; a grammar of this kind leaves about 0.1."""

    steps: int
    sample_every: int
    bound: float


FULL = Plan(steps=400, sample_every=100, bound=0.25)
QUICK = Plan(steps=48, sample_every=24, bound=0.8)


class Print(Quiet):
    """Shows the loss, and what the model writes."""

    def on_start(self, run: RunInfo) -> None:
        print(f"{run.parameters:,} parameters, {run.steps} steps of {run.tokens_per_step:,} characters")

    def on_step(self, record: Record) -> None:
        step = record["step"] or 0
        if step == 1 or step % 20 == 0:
            print(f"  step {step:4}: loss {record['loss']:.3f}, {record['tokens_per_s']:,.0f} characters/s", flush=True)

    def on_sample(self, sample: Sample) -> None:
        if sample.kind == "greedy":
            print(f"    {first_story(sample.prompt, sample.text)}", flush=True)


def first_story(prompt: str, text: str) -> str:
    """What was written up to the first empty line, on one line."""
    return (prompt + text).partition("\n\n")[0].replace("\n", " / ")


def main(out: Path, plan: Plan) -> None:
    begin = time.perf_counter()
    if (out / "run").exists():
        raise SystemExit(f"{out} holds an earlier run, and nothing is deleted here; name another folder")
    out.mkdir(parents=True, exist_ok=True)
    text = out / "stories.txt"
    text.write_text(sample_text(), encoding="utf-8")
    print(f"{text}: {len(sample_text()):,} characters\n\n{sample_text(characters=300).strip()}\n")

    print(f"$ archc tokenizer train {SPEC.name} --data {text.name} -o tokenizer.json")
    tokenizer = archc.load_spec(SPEC).tokenizer.train([sample_text()])
    tokenizer.save(str(out / "tokenizer.json"))
    print(f"{tokenizer.get_vocab_size()} ids\n")

    print(
        f"$ archc train {SPEC.name} --data {text.name} --tokenizer tokenizer.json --steps {plan.steps} --optimizer muon …"
    )
    found = archc.train(
        SPEC,
        data=text,
        tokenizer=out / "tokenizer.json",
        output=out / "run",
        steps=plan.steps,
        seq_len=128,
        batch_size=16,
        optimizer="muon",
        lr=0.01,
        min_lr_ratio=0.05,
        warmup_steps=20,
        seed=0,
        sample_every=plan.sample_every,
        sample_prompts=PROMPTS,
        watchers=[Print()],
    )
    assert found.loss is not None
    assert found.folder is not None
    print(f"loss {found.loss:.3f} after {time.perf_counter() - begin:.0f} s, which should be below {plan.bound}")
    if found.loss >= plan.bound:
        raise SystemExit(f"the loss, {found.loss:.3f}, did not fall below {plan.bound}")

    print(f"\n$ archc export {found.folder.relative_to(out)} -o onnx --dtype f32")
    described = resolved(str(found.folder / "spec.yaml"))
    graph = archc.expand(described.spec)
    export = registry.load("exporter", "onnx")
    export(graph, out / "onnx", weights=found.folder, spec=described, tokenizer=out / "tokenizer.json", dtype="float32")
    exported = archc.load(out / "onnx")
    trained = archc.load_weights(archc.build(graph, device="cpu"), found.folder)
    here = archc.generate(trained, list(PROMPTS), tokenizer=out / "tokenizer.json", max_new_tokens=NEW_TOKENS)
    there = exported.generate(list(PROMPTS), max_new_tokens=NEW_TOKENS)
    print("onnxruntime writes, from the exported file:")
    for prompt, written in zip(PROMPTS, there.texts, strict=True):
        print(f"    {first_story(prompt, written)}")
    if here.ids != there.ids:
        raise SystemExit("torch and onnxruntime write different texts")
    print(f"torch writes the same {sum(map(len, here.ids)):,} characters. {time.perf_counter() - begin:.0f} s in all.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "out", nargs="?", type=Path, default=Path("train-demo-out"), help="where to write; a new folder"
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of a minute, as in CI")
    options = parser.parse_args()
    main(options.out, QUICK if options.quick else FULL)
