"""Options of ``archc estimate --train``."""

from __future__ import annotations

import click

from archc.cli.options import LENGTH, POSITIVE

TRAIN_OPTIONS: tuple[click.Option, ...] = (
    click.Option(
        ["--optimizer"],
        metavar="NAME",
        help="adamw, muon, adafactor, adamw8bit or sgd (with momentum). Default: adamw.",
    ),
    click.Option(
        ["--master-weights/--no-master-weights"],
        default=None,
        help="Whether the optimizer moves float32 copies of narrower weights. Default: yes.",
    ),
    click.Option(
        ["--grad-dtype"],
        metavar="DTYPE",
        help="dtype in which gradients are summed. Default: the weights', under --zero 3 the masters'.",
    ),
    click.Option(
        ["--zero"],
        type=click.IntRange(0, 3),
        metavar="0..3",
        help="Cut over dp x cp: 1 optimizer states, 2 gradients too, 3 parameters too (FSDP). Default: 0.",
    ),
    click.Option(
        ["--sequence-parallel"],
        is_flag=True,
        default=None,
        help="Cut what lies between the products that --tp cuts along the tokens.",
    ),
    click.Option(
        ["--schedule"],
        metavar="NAME",
        help="Order of passes over --pp stages: gpipe, 1f1b, interleaved or zero-bubble. Default: 1f1b.",
    ),
    click.Option(
        ["--virtual-stages"],
        type=POSITIVE,
        metavar="N",
        help="Runs of layers a stage has under --schedule interleaved. Default: 2.",
    ),
    click.Option(
        ["--loss"],
        metavar="NAME",
        help="plain: cross-entropy of a model's logits; fused: archc train's, without logits. Default: plain.",
    ),
    click.Option(
        ["--loss-chunk"],
        type=LENGTH,
        metavar="TOKENS",
        help="Tokens whose logits and loss are made at once. Default: all of a micro-batch.",
    ),
    click.Option(
        ["--activations"],
        metavar="NAME",
        help="graph, or megatron: the formula of arXiv 2205.05198, to compare with. Default: graph.",
    ),
)
