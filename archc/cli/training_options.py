"""Options of ``archc train``, by what they are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from archc.cli.options import LENGTH, POSITIVE, Command, Number
from archc.cli.plan_options import RANKS, SPLITS
from archc.units import parse_count

Function = TypeVar("Function", bound=Callable[..., Any])

_FACTOR = click.FloatRange(min=0)
_RANKS = {"dp": "what other options leave of the processes"}
_PATH = click.Path(exists=True)
FLOPS = Number("FLOP/s", parse_count)
"""FLOP/s as people write them: 989.4T."""


def _option(*names: str, **fields: Any) -> click.Option:
    return click.Option(list(names), **fields)


GROUPS: dict[str, tuple[click.Option, ...]] = {
    "Data": (
        _option(
            "--data",
            type=_PATH,
            multiple=True,
            required=True,
            metavar="FILE|DIR",
            help="Texts, .jsonl, a folder of those, or shards that a run has made. Can be repeated.",
        ),
        _option("--eval-data", type=_PATH, multiple=True, metavar="FILE|DIR", help="Data that is only looked at."),
        _option(
            "--held-out",
            type=click.FloatRange(0, 1, max_open=True),
            metavar="PART",
            help="This part of --data is only looked at. Default: 0.",
        ),
        _option(
            "--packing",
            type=click.Choice(["packed", "documents"]),
            help="Rows of texts that follow each other, or no two texts in a row. Default: packed.",
        ),
        _option(
            "--tokenizer",
            type=_PATH,
            metavar="PATH",
            help="A tokenizer.json, or a folder with one. Default: that of SPEC.",
        ),
    ),
    "The run": (
        _option(
            "-o",
            "--output",
            type=click.Path(),
            required=True,
            metavar="RUN",
            help="The run's folder, which must be new.",
        ),
        _option(
            "--resume",
            is_flag=True,
            help="Go on from RUN's last checkpoint. Options that are not stated are the run's; others that would change its "
            "numbers are refused. SPEC with --set and --tokenizer, data and prompts are stated again.",
        ),
        _option(
            "--steps", type=POSITIVE, metavar="N", help="Steps of the optimizer. With --resume by default the run's."
        ),
        _option(
            "--seq-len",
            type=LENGTH,
            metavar="TOKENS",
            help="Tokens that a sequence learns to predict. Default: 512, or the spec's max_position_embeddings, if fewer.",
        ),
        _option(
            "--batch-size",
            type=POSITIVE,
            metavar="N",
            help="Sequences of a step, over all copies and passes. Default: 16.",
        ),
        _option("--seed", type=int, metavar="N", help="Of the first weights and of the data's order. Default: 0."),
        _option(
            "--weights",
            type=_PATH,
            metavar="DIR",
            help="Weights to begin from, as archc generate takes them. Default: drawn from --seed.",
        ),
        _option(
            "--checkpoint-every",
            type=POSITIVE,
            metavar="N",
            help="Steps between checkpoints; there is one at the end in any case. Default: a tenth of --steps, at least 50.",
        ),
        _option("--keep", type=POSITIVE, metavar="N", help="Checkpoints that stay, the newest. Default: 2."),
    ),
    "How it learns": (
        _option(
            "--optimizer",
            type=click.Choice(["adamw", "muon", "sgd"]),
            help="muon: of matrices inside layers, adamw of the rest. Default: adamw.",
        ),
        _option(
            "--lr",
            type=_FACTOR,
            metavar="RATE",
            help="Learning rate at its peak. Default: 3e-4 for adamw, 2e-3 for muon, 1e-2 for sgd.",
        ),
        _option(
            "--schedule",
            type=click.Choice(["cosine", "wsd", "constant"]),
            help="Of the learning rate behind the warm-up; wsd: stable, then down in a line. Default: cosine.",
        ),
        _option(
            "--warmup-steps",
            type=click.IntRange(min=0),
            metavar="N",
            help="Steps in which it rises. Default: a tenth of --steps, at most 2000.",
        ),
        _option(
            "--decay-steps",
            type=click.IntRange(min=0),
            metavar="N",
            help="Steps in which wsd falls. Default: a tenth of --steps.",
        ),
        _option(
            "--min-lr-ratio",
            type=click.FloatRange(0, 1),
            metavar="PART",
            help="Part of the peak that is left at the end. Default: 0.1 for cosine, 0 for wsd.",
        ),
        _option("--weight-decay", type=_FACTOR, metavar="FACTOR", help="Decoupled. Default: 0.1."),
        _option(
            "--decay-embeddings/--no-decay-embeddings",
            default=None,
            help="Whether tables of embeddings decay, too. Default: yes.",
        ),
        _option("--betas", type=float, nargs=2, metavar="B1 B2", help="adamw's. Default: 0.9 0.95."),
        _option("--eps", type=_FACTOR, metavar="EPS", help="adamw's. Default: 1e-8."),
        _option(
            "--momentum",
            type=click.FloatRange(0, 1, max_open=True),
            metavar="M",
            help="muon's and sgd's. Default: 0.95.",
        ),
        _option(
            "--clip-norm",
            type=_FACTOR,
            metavar="NORM",
            help="Gradients are scaled to this norm where theirs is larger; 0: never. Default: 1.",
        ),
        _option(
            "--z-loss",
            type=_FACTOR,
            metavar="FACTOR",
            help="Of the squared log-partition of the logits, added to the loss. Default: 0.",
        ),
        _option(
            "--router-bias-rate",
            type=_FACTOR,
            metavar="RATE",
            help="Step by which the biases of routers follow the loads of experts. Default: 1e-3.",
        ),
        _option(
            "--balance-loss",
            type=_FACTOR,
            metavar="FACTOR",
            help="Of uneven loads of experts, in the loss. Default: 0.",
        ),
        _option(
            "--balance-over",
            type=click.Choice(["sequence", "batch"]),
            help="Over what --balance-loss evens loads. Default: sequence.",
        ),
        _option(
            "--router-z-loss",
            type=_FACTOR,
            metavar="FACTOR",
            help="Of the squared log-partition of routers' logits. Default: 0.",
        ),
    ),
    "Memory and speed": (
        _option(
            "--dtype",
            type=click.Choice(["float32", "bfloat16"]),
            help="What is computed in; weights and optimizer states are float32. Default: float32.",
        ),
        _option(
            "--micro-batch-size",
            type=POSITIVE,
            metavar="N",
            help="Sequences of one pass on one copy; gradients of passes add up. Default: all that a copy has of a step.",
        ),
        _option(
            "--recompute",
            type=click.Choice(["none", "selective", "full"]),
            help="What backward computes again instead of keeping it. Default: none.",
        ),
        _option("--compile/--no-compile", default=None, help="torch.compile each layer. Default: no."),
        _option(
            "--loss-chunk",
            type=LENGTH,
            metavar="TOKENS",
            help="Tokens whose logits exist at once. Default: as many as make 2^27 logits, at least 256.",
        ),
        _option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: cuda where there is one, else cpu."),
    ),
    "Ranks, as torchrun starts them": (
        *(
            _option(f"--{name}", type=RANKS, metavar="N", help=f"{text} Default: {_RANKS.get(name, '1')}.")
            for name, text in SPLITS.items()
        ),
        _option(
            "--zero",
            type=click.IntRange(2, 3),
            metavar="2|3",
            help="Cut over dp x cp: 2 gradients and optimizer states, 3 parameters too. Default: 3.",
        ),
        _option(
            "--pp-schedule",
            type=click.Choice(["1f1b", "gpipe"]),
            help="Order of passes over --pp stages. Default: 1f1b.",
        ),
    ),
    "Seeing it": (
        _option("--log-every", type=POSITIVE, metavar="N", help="Steps between lines. Default: 10."),
        _option(
            "--eval-every",
            type=POSITIVE,
            metavar="N",
            help="Steps between looks at held-out data, of which there is one at the end. Default: none but that.",
        ),
        _option("--eval-batches", type=POSITIVE, metavar="N", help="Batches of such a look. Default: 8."),
        _option("--sample-every", type=POSITIVE, metavar="N", help="Steps between texts of the model. Default: none."),
        _option(
            "--sample-prompt",
            "sample_prompts",
            multiple=True,
            metavar="TEXT",
            help="What those go on from. Can be repeated. Default: the beginning of the data.",
        ),
        _option(
            "--spike-factor",
            type=click.FloatRange(min=1, min_open=True),
            metavar="X",
            help="Stop where four losses in a row are above X times the median of the last 64. Default: never.",
        ),
        _option("--tensorboard", is_flag=True, help="Numbers and texts for TensorBoard, in RUN/tensorboard."),
        _option(
            "--gpu",
            metavar="NAME",
            help="Device of the catalogue whose peak MFU is a share of. Default: the one that torch finds.",
        ),
        _option(
            "--peak-flops",
            type=FLOPS,
            metavar="FLOP/S",
            help="That peak of one device, as in 989.4T, instead of --gpu.",
        ),
    ),
}
"""Title -> options; those of ``TrainOptions`` have its names and None for what is not stated."""


def training_options(function: Function) -> Function:
    """All of them."""
    # click collects the options of a function here, last one first, as its own decorator does.
    params: list[click.Parameter] = function.__dict__.setdefault("__click_params__", [])
    params += reversed([option for options in GROUPS.values() for option in options])
    return function


class GroupedCommand(Command):
    """A command whose help lists options under ``GROUPS``."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        titles = {id(option): title for title, options in GROUPS.items() for option in options}
        found: dict[str, list[tuple[str, str]]] = {title: [] for title in (*GROUPS, "Options")}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                found[titles.get(id(param), "Options")].append(record)
        for title, records in found.items():
            with formatter.section(title):
                formatter.write_dl(records)
