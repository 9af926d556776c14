"""``archc.train``: a spec, a text, and a folder in which the run lives."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch
import torch.distributed as dist

from archc.errors import ArchcError
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.spec.resolved import resolved
from archc.torch_backend.build import build
from archc.torch_backend.weights import load_weights, weights_of
from archc.training.asking import Stated, texts_of
from archc.training.checkpoints import Checkpoints
from archc.training.failures import lock_run, told_of_lost_ranks
from archc.training.objectives.choosing import data_form
from archc.training.options import TrainOptions
from archc.training.parallel.initialise import fill
from archc.training.parallel.world import World, open_world
from archc.training.prepare import Prepared, prepare, refuse_what_cannot_be
from archc.training.record import TrainResult
from archc.training.run_data import RunData, staged
from archc.training.run_folder import RunFolder
from archc.training.run_weights import export_weights
from archc.training.trainer import Trainer
from archc.training.watching.metrics import MetricsFile
from archc.training.watching.samples import SamplesFile
from archc.training.watching.sampling import refuse_samples, sampler_for, whole_model
from archc.training.watching.speed import Speed, device_peak_flops_per_s, step_flops
from archc.training.watching.watcher import RunInfo, Watcher, Watchers

Progress = Callable[[str, int, int], None]
Found = TypeVar("Found")
Path_ = str | Path
TOLD = "the first rank says so, too"
"""A note on errors that others need not print."""


def train(
    spec: Path_,
    *,
    data: Path_ | Sequence[Path_],
    steps: int,
    output: Path_ | None = None,
    resume: bool = False,
    overrides: Sequence[str] = (),
    tokenizer: Any = None,
    weights: Path_ | None = None,
    eval_data: Path_ | Sequence[Path_] | None = None,
    held_out: float = 0.0,
    sample_prompts: Sequence[str] = (),
    peak_flops_per_s: float | None = None,
    watchers: Sequence[Watcher] = (),
    progress: Progress | None = None,
    **stated: Unpack[Stated],
) -> TrainResult:
    """Train a spec (a file, or a shipped one's name) on texts, or go on with a run.

    ``data`` are files or folders of texts, of ``.jsonl``, or of shards that were made before. ``output`` is the folder of the
    run; without it nothing is kept but the result. ``weights`` is a model folder to begin from. ``held_out`` is the share of the
    data, or ``eval_data`` other data, that is only looked at. ``tokenizer`` is a path or a ``tokenizers.Tokenizer``, by default
    what the spec names. The model goes on from ``sample_prompts`` every ``sample_every`` steps. ``peak_flops_per_s`` of a device,
    for MFU, is by default the catalogue's. Other keywords are those of ``TrainOptions``. Every rank of a torchrun calls this
    alike; ``watchers`` are told on the first.

    Raises:
        ArchcError: the spec, options, data, or the folder can't be so; nothing was begun.
        RankLostError: another rank is gone.
    """
    merged = resolved(spec, overrides)
    graph = expand(merged.spec)
    if "seq_len" not in stated and graph.max_position_embeddings:
        stated["seq_len"] = min(TrainOptions(steps=1).seq_len, graph.max_position_embeddings)
    options = TrainOptions(steps=steps, **stated).check()
    data_form(graph)
    refuse_what_cannot_be(graph, options)
    asked = RunData(
        spec=merged.spec,
        graph=graph,
        options=options,
        texts=texts_of(merged.spec, spec, tokenizer),
        data=data,
        eval_data=eval_data,
        held_out=held_out,
        progress=progress,
    )
    asked.check()
    refuse_samples(graph, options, sample_prompts, asked.texts)
    with ExitStack() as stack:
        world = open_world(options.parallel, options.device, needs_mesh=options.dtype != "float32")
        stack.callback(world.close)
        place = None if output is None else Path(os.path.abspath(output))
        folder = _folder(asked, place, world, stack, resume=resume)
        run = _opened(asked, merged.to_yaml(), place, folder, world, stack, resume=resume, weights=weights)
        lock = None if run is None else stack.enter_context(closing(lock_run(run.path, world.rank, world.size)))
        if run is not None:
            if resume:
                on_first(world, lambda: _go_on(asked, folder, run))
                weights = weights or run.settings.get("weights")
            folder = run.data
        objective, evaluation = asked.objectives(folder)
        checkpoints = None if run is None else stack.enter_context(Checkpoints(run.checkpoints, options.keep))
        last = None if checkpoints is None or not resume else checkpoints.latest()
        prepared = prepare(graph, options, world, initialised=last is None and weights is None)
        if weights is not None and last is None:
            _begin_from(prepared, weights)
        trainer = Trainer(
            prepared=prepared,
            objective=objective,
            options=options,
            world=world,
            speed=_speed(graph, options, world, peak_flops_per_s),
            checkpoints=checkpoints,
            watchers=Watchers([*_files(run, stack), *watchers] if world.is_first else ()),
            evaluation=evaluation,
            sampler=sampler_for(
                graph,
                merged.spec,
                prepared.module,
                options,
                world,
                prompts=sample_prompts,
                texts=asked.texts,
                data=asked.tokens(folder),
            ),
        )
        if last is not None:
            trainer.resume(last)
        info = _info(trainer, run)
        if run is None or lock is None or checkpoints is None:
            found = trainer.run(info)
            # Nothing else is kept of it, so pieces are gathered, too.
            model = _whole(prepared, world) or whole_model(prepared.module.model, graph, world, "float32")
            return replace(found, model=model)
        with told_of_lost_ranks(
            run.path, lock, rank=world.rank, world=world.size, step=lambda: trainer.step + 1, last=checkpoints.latest
        ):
            found = trainer.run(info)
            if found.checkpoint is not None:
                on_first(world, lambda: export_weights(run.path, run.model))
        model = run.model if found.checkpoint is not None else None
        return replace(found, folder=model, model=_whole(prepared, world))


def _files(run: RunFolder | None, stack: ExitStack) -> list[Watcher]:
    """What every run folder gets."""
    if run is None:
        return []
    return [stack.enter_context(closing(file)) for file in (MetricsFile(), SamplesFile())]


def on_first(world: World, action: Callable[[], Found]) -> Found | None:
    """What an action of the first rank gives there, None on others; if it fails, it fails on all.

    Raises:
        ArchcError: the first rank's.
    """
    found: Found | None = None
    said: list[Any] = [None]
    if world.is_first:
        try:
            found = action()
        except ArchcError as error:
            said = [error]
        except Exception as error:
            # Others would wait for hours for what never comes.
            if world.size > 1:
                lost = ArchcError(f"the first rank failed: {error!r}")
                dist.broadcast_object_list([lost], src=0, group=world.host)
            raise
    if world.size > 1:
        dist.broadcast_object_list(said, src=0, group=world.host)
    if said[0] is not None:
        if not world.is_first:
            said[0].add_note(TOLD)
        raise said[0]
    return found


def _folder(asked: RunData, place: Path | None, world: World, stack: ExitStack, *, resume: bool) -> Path:
    """Where the shards lie that were asked for: beside the run's own until they are known to be the same."""
    told: list[Any] = [None]

    def make() -> None:
        known = None
        if place is None:
            home = None
        elif resume:
            home = known = RunFolder.open(place).data
        else:
            RunFolder.check_new(place)
            home = place.with_name(f"{place.name}-data")
        folder = stack.enter_context(staged(home))
        asked.prepare(folder, known=known)
        told[0] = str(folder)

    on_first(world, make)
    if world.size > 1:
        dist.broadcast_object_list(told, src=0, group=world.host)
    return Path(told[0])


def _opened(
    asked: RunData,
    spec_text: str,
    place: Path | None,
    folder: Path,
    world: World,
    stack: ExitStack,
    *,
    resume: bool,
    weights: Path_ | None,
) -> RunFolder | None:
    """The run's folder, made now, or found to be of the same run; what a resumed run changes is not written yet."""
    if place is None:
        return None

    def make() -> RunFolder:
        told: dict[str, Any] = {"spec_text": spec_text, "graph": asked.graph, "options": asked.options.to_json()}
        told["data"] = asked.identity(folder)
        if resume:
            return RunFolder.open(place).resume(**told)
        writes, reads = asked.texts
        run = RunFolder.create(
            place,
            **told,
            tokenizer_text=None if writes is None else writes.to_json(),
            source_tokenizer_text=None if reads is None or reads is writes else reads.to_json(),
            weights=weights,
        )
        stack.push(partial(_forget_unbegun, run))
        asked.settle(folder, run.data)
        return run

    return on_first(world, make) or RunFolder.open(place)


def _forget_unbegun(run: RunFolder, kind: Any, error: BaseException | None, trace: Any) -> None:
    """A new run that is refused leaves nothing behind that would be in the way of the next try."""
    if isinstance(error, ArchcError) and not run.metrics.exists():
        shutil.rmtree(run.path, ignore_errors=True)


def _go_on(asked: RunData, folder: Path, run: RunFolder) -> None:
    asked.settle(folder, run.data)
    run.write()


def _begin_from(prepared: Prepared, weights: Path_) -> None:
    """Weights of a model folder. Each rank reads the whole model once, on the CPU."""
    whole = load_weights(build(prepared.graph, device="cpu"), weights)
    fill(prepared.module.model, prepared.graph, iter(weights_of(whole).items()))


def _speed(graph: Graph, options: TrainOptions, world: World, peak: float | None) -> Speed:
    if peak is None and world.device.type == "cuda":
        peak = device_peak_flops_per_s(torch.cuda.get_device_name(world.device), options.dtype)
    flops = step_flops(graph, seq_len=options.seq_len, batch_size=options.batch_size)
    return Speed(flops, None if peak is None else peak * world.size)


def _info(trainer: Trainer, run: RunFolder | None) -> RunInfo:
    graph, options = trainer.prepared.graph, trainer.options
    return RunInfo(
        name=graph.name,
        folder=None if run is None else run.path,
        steps=options.steps,
        first_step=trainer.step,
        log_every=options.log_every,
        ranks=trainer.world.size,
        parameters=sum(param.elements for param in graph.params().values() if param.trainable),
        tokens_per_step=options.batch_size * options.seq_len,
        flops_per_step=trainer.speed.flops_per_step,
        peak_flops_per_s=trainer.speed.peak_flops_per_s,
        notes=tuple(options.notes()),
    )


def _whole(prepared: Prepared, world: World) -> Any:
    """The model, where one rank holds all of it as plain tensors."""
    return prepared.module.model if world.mesh is None else None
