"""The options of every command, frozen: a new one is a promise, so it is written down here first."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.testing import Result

from archc.cli.main import COMMANDS, archc

OPTIONS = {
    "estimate": [
        "SPEC",
        "--batch-size",
        "--max-model-len",
        "--source-len",
        "--dtype",
        "--kv-cache-dtype",
        "--block-size",
        "--explain",
        "--serve",
        "--train",
        "--time",
        "--gpu",
        "--hardware",
        "--gpus",
        "--tp",
        "--pp",
        "--ep",
        "--dp",
        "--cp",
        "--prefill-tokens",
        "--prefix-caching",
        "--shared-prefix",
        "--mamba-block-size",
        "--workspace",
        "--overhead",
        "--gpu-memory-utilization",
        "--warn-share",
        "--optimizer",
        "--master-weights",
        "--grad-dtype",
        "--zero",
        "--sequence-parallel",
        "--schedule",
        "--virtual-stages",
        "--loss",
        "--loss-chunk",
        "--activations",
        "--micro-batch-size",
        "--recompute",
        "--micro-batches",
        "--compute-efficiency",
        "--memory-efficiency",
        "--link-efficiency",
        "--overlap",
        "--mfu",
        "--tokens",
        "--flops-convention",
        "--set",
        "--json",
    ],
    "complexity": ["SPEC", "--at", "--batch-size", "--set", "--json"],
    "diff": [
        "A",
        "[B]",
        "--set-a",
        "--set-b",
        "--at",
        "--batch-size",
        "--dtype",
        "--kv-cache-dtype",
        "--gpu",
        "--hardware",
        "--gpus",
        "--compute-efficiency",
        "--memory-efficiency",
        "--exit-code",
        "--set",
        "--json",
    ],
    "compare": [
        "SPEC...",
        "--at",
        "--batch-size",
        "--dtype",
        "--kv-cache-dtype",
        "--gpu",
        "--hardware",
        "--gpus",
        "--compute-efficiency",
        "--memory-efficiency",
        "--output",
        "--set",
        "--json",
    ],
    "plot": [
        "SPEC|RUN...",
        "--what",
        "--output",
        "--at",
        "--batch-size",
        "--dtype",
        "--kv-cache-dtype",
        "--gpu",
        "--hardware",
        "--gpus",
        "--compute-efficiency",
        "--memory-efficiency",
        "--set",
        "--json",
    ],
    "report": [
        "SPEC...",
        "--output",
        "--batch-size",
        "--max-model-len",
        "--source-len",
        "--dtype",
        "--kv-cache-dtype",
        "--block-size",
        "--gpu",
        "--tp",
        "--pp",
        "--set",
        "--json",
    ],
    "sweep": ["SPEC", "--vary", "--at", "--batch-size", "--metrics", "--strict", "--output", "--set", "--json"],
    "fit": [
        "SPEC",
        "--free",
        "--params",
        "--active-params",
        "--cache-at",
        "--memory",
        "--max-model-len",
        "--batch-size",
        "--within",
        "--output",
        "--overwrite",
        "--set",
        "--json",
    ],
    "show": ["SPEC", "--resolved", "--lock", "--diagram", "--set", "--json"],
    "validate": ["FILE...", "--lock", "--json"],
    "plan": [
        "SPEC",
        "--gpus",
        "--tp",
        "--pp",
        "--ep",
        "--dp",
        "--cp",
        "--zero",
        "--optimizer",
        "--dtype",
        "--master-weights",
        "--grad-dtype",
        "--states",
        "--set",
        "--json",
    ],
    "train": [
        "SPEC",
        "--data",
        "--eval-data",
        "--held-out",
        "--packing",
        "--tokenizer",
        "--output",
        "--resume",
        "--steps",
        "--seq-len",
        "--batch-size",
        "--seed",
        "--weights",
        "--checkpoint-every",
        "--keep",
        "--optimizer",
        "--lr",
        "--schedule",
        "--warmup-steps",
        "--decay-steps",
        "--min-lr-ratio",
        "--weight-decay",
        "--decay-embeddings",
        "--betas",
        "--eps",
        "--momentum",
        "--clip-norm",
        "--z-loss",
        "--router-bias-rate",
        "--balance-loss",
        "--balance-over",
        "--router-z-loss",
        "--dtype",
        "--micro-batch-size",
        "--recompute",
        "--compile",
        "--loss-chunk",
        "--device",
        "--tp",
        "--pp",
        "--ep",
        "--dp",
        "--cp",
        "--zero",
        "--pp-schedule",
        "--log-every",
        "--eval-every",
        "--eval-batches",
        "--sample-every",
        "--sample-prompt",
        "--spike-factor",
        "--tensorboard",
        "--gpu",
        "--peak-flops",
        "--set",
        "--json",
    ],
    "attention": [
        "SPEC|DIR",
        "--text",
        "--ids",
        "--decoder-text",
        "--decoder-ids",
        "--prefix-length",
        "--layer",
        "--head",
        "--output",
        "--weights",
        "--tokenizer",
        "--device",
        "--seed",
        "--set",
        "--json",
    ],
    "build": ["SPEC", "--output", "--device", "--dtype", "--max-model-len", "--seed", "--set", "--json"],
    "export": [
        "SPEC",
        "--output",
        "--weights",
        "--no-weights",
        "--overwrite",
        "--provider",
        "--dtype",
        "--io",
        "--max-model-len",
        "--batched-chunks",
        "--sliding-window-cache",
        "--kv-cache-dtype",
        "--calibration",
        "--quant",
        "--quant-block-size",
        "--quant-zero-points",
        "--quant-embedding",
        "--quant-head",
        "--prune-head",
        "--seed",
        "--tokenizer",
        "--no-check",
        "--check-provider",
        "--verify",
        "--set",
        "--json",
    ],
    "generate": [
        "SPEC|DIR",
        "--prompt",
        "--prompt-ids",
        "--prompt-file",
        "--weights",
        "--tokenizer",
        "--decoder-ids",
        "--max-new-tokens",
        "--temperature",
        "--top-k",
        "--top-p",
        "--min-p",
        "--repetition-penalty",
        "--seed",
        "--stop-ids",
        "--batch-size",
        "--device",
        "--dtype",
        "--chunk-size",
        "--ids",
        "--set",
        "--json",
    ],
    "run": [
        "DIR",
        "--prompt",
        "--prompt-ids",
        "--prompt-file",
        "--max-new-tokens",
        "--temperature",
        "--top-k",
        "--top-p",
        "--min-p",
        "--repetition-penalty",
        "--seed",
        "--stop-ids",
        "--batch-size",
        "--provider",
        "--threads",
        "--chunk-size",
        "--max-model-len",
        "--ids",
        "--json",
    ],
    "bench": [
        "DIR",
        "--prompt-tokens",
        "--new-tokens",
        "--batch-size",
        "--rounds",
        "--chunk-size",
        "--provider",
        "--threads",
        "--json",
    ],
    "import": ["CONFIG|DIR", "--output", "--name", "--overwrite", "--check", "--json"],
    "convert": [
        "DIR",
        "--output",
        "--to",
        "--allow-unused",
        "--max-shard-size",
        "--name",
        "--step",
        "--dtype",
        "--json",
    ],
    "inspect": ["MODEL.onnx", "--provider", "--fail-on-cpu", "--fail-on-memcpy", "--json"],
    "tokenizer": [],
    "tokenizer train": ["SPEC", "--data", "--output", "--overwrite", "--set", "--json"],
    "tokenizer show": ["FILE|SPEC", "--text", "--ids", "--keep-special", "--set", "--json"],
    "schema": ["--output", "--markdown"],
    "hardware": ["[NAME]", "--hardware", "--json"],
    "plugins": ["--family", "--verbose", "--json"],
    "plugins show": ["FAMILY.NAME", "--set", "--json"],
    "plugins new": ["NAME", "--family", "--output"],
}


def parameters(command: click.Command) -> list[str]:
    return [
        max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name
        for parameter in command.params
    ]


def test_every_command_has_exactly_the_promised_options():
    context = click.Context(archc)
    found: dict[str, list[str]] = {}
    for name in archc.list_commands(context):
        command = archc.get_command(context, name)
        assert command is not None
        found[name] = parameters(command)
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": parameters(command.commands[inner]) for inner in command.commands}
    assert found == OPTIONS


def test_every_command_is_listed_with_one_line_and_has_help():
    context = click.Context(archc)
    assert list(COMMANDS) == [name for name in OPTIONS if " " not in name]
    for name in COMMANDS:
        command = archc.get_command(context, name)
        assert command is not None
        assert command.help
        assert COMMANDS[name].endswith(".")


def test_the_help_of_estimate_lists_options_under_the_flags_that_they_belong_to(invoke: Callable[..., Result]):
    sections = invoke("estimate", "--help").stdout.split("\n\n")
    under = {section.splitlines()[0].strip(): section for section in sections}
    assert "--batch-size" in under["Options:"]
    assert "--tp" in under["With --serve, --train or --time:"]
    assert "--prefix-caching" in under["With --serve:"]
    assert "--zero" in under["With --train:"]
    assert "--recompute" in under["With --train or --time:"]
    assert "--mfu" in under["With --time:"]


def test_the_help_of_train_lists_options_by_what_they_are_about(invoke: Callable[..., Result]):
    sections = invoke("train", "--help").stdout.split("\n\n")
    under = {section.splitlines()[0].strip(): section for section in sections}
    assert "--data" in under["Data:"]
    assert "--resume" in under["The run:"]
    assert "--warmup-steps" in under["How it learns:"]
    assert "--recompute" in under["Memory and speed:"]
    assert "--cp" in under["Ranks, as torchrun starts them:"]
    assert "--spike-factor" in under["Seeing it:"]
    assert "--set" in under["Options:"]
