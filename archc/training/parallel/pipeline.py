"""Pipeline parallelism by ``torch.distributed.pipelining``: a stage with its loss, and the engine that runs its schedule."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.distributed.tensor import DTensor

from archc.graph.graph import resolve_dtype
from archc.ir.size import evaluate
from archc.ir.values import Value
from archc.torch_backend.context import torch_dtype
from archc.torch_backend.scopes import ScopeModule
from archc.training.engine import Cut
from archc.training.loss import Criterion
from archc.training.module import TrainingModel
from archc.training.objectives.batch import Batch
from archc.training.options import TrainOptions
from archc.training.parallel.fsdp import end_gathered
from archc.training.parallel.stage import Stage
from archc.training.parallel.world import World


class StageModel(TrainingModel):
    """What a stage runs: ``forward(*received, targets=…, **inputs)``, what the next one is to receive, of the last one the loss.

    ``weight`` is what the losses of the next passes are multiplied by.
    """

    weight: Tensor

    def __init__(
        self,
        model: ScopeModule,
        stage: Stage,
        *,
        loss_chunk: int | None = None,
        z_loss: float = 0.0,
        criterion: Criterion | None = None,
    ) -> None:
        super().__init__(model, loss_chunk=loss_chunk, z_loss=z_loss, criterion=criterion)
        self.stage = stage

    def forward(self, *received: Any, **inputs: Any) -> Any:
        stage = self.stage
        given = dict(zip(stage.arguments, received, strict=True))
        given |= {name: value for name, value in inputs.items() if name in stage.inputs}
        if stage.is_last:
            return super().forward(given, inputs["targets"], self.weight)
        # What is sent has to lie as the receiver's buffer does.
        return tuple(value.contiguous() for value in self.model(**given))


class PipelineEngine:
    """``archc.training.engine.Engine`` for one stage of a model: micro-batches go from rank to rank of ``pp``.

    All micro-batches of a step have one shape. With fewer of them than stages both schedules are GPipe, since there is
    nothing to alternate. Gradients of weights that stand on several stages are summed over those, so that copies stay equal.
    """

    def __init__(self, module: StageModel, options: TrainOptions, world: World, cut: Cut | None = None) -> None:
        self.module, self.options, self.world, self.cut = module, options, world, cut
        self._schedules: dict[Hashable, PipelineScheduleSingle] = {}
        self._groups = _groups_of(world, module.stage)
        # The group's communicator is made here, by all ranks at once, and not between two sends of a schedule.
        world.all_sum(torch.zeros((), device=world.device), "pp")

    def forward_backward(self, micro_batches: Sequence[Batch], weight: Tensor) -> Tensor:
        loss = self._run(micro_batches, weight, is_training=True)
        self._sum_shared()
        return loss

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch], weight: Tensor) -> Tensor:
        self.module.eval()
        try:
            return self._run(micro_batches, weight, is_training=False)
        finally:
            end_gathered(self.module)
            self.module.train()

    def _run(self, micro_batches: Sequence[Batch], weight: Tensor, *, is_training: bool) -> Tensor:
        cut = self.cut
        pairs: list[tuple[Batch, Any]] = [(each, None) if cut is None else cut(each) for each in micro_batches]
        batches = [batch.to(self.world.device) for batch, _ in pairs]
        first, step = batches[0], pairs[0][1]
        inputs: dict[str, Any] = {name: torch.cat([each.inputs[name] for each in batches]) for name in first.inputs}
        if step is not None:
            inputs["step"] = step
        targets = torch.cat([each.targets for each in batches])
        schedule: Any = self._schedule(first, len(batches), is_training=is_training)
        self.module.weight = weight
        losses: list[Tensor] = []
        run = schedule.step if is_training else schedule.eval
        run(target=targets, losses=losses, return_outputs=False, targets=targets, **inputs)
        if not losses:
            return torch.zeros((), dtype=torch.float32, device=self.world.device)
        return torch.stack([loss.detach() for loss in losses]).sum()

    def _schedule(self, batch: Batch, count: int, *, is_training: bool) -> PipelineScheduleSingle:
        """The schedule of so many micro-batches of this shape, made once: its buffers are of that size."""
        shapes = tuple((name, tuple(value.shape)) for name, value in batch.inputs.items())
        key = (count, shapes, is_training)
        if key not in self._schedules:
            stage = self.module.stage
            sizes = _sizes(batch)
            # Stated and not tried out: a trial would run every stage once more, and routers count what they see.
            inputs = tuple(self._example(value, sizes) for value in stage.received)
            outputs = tuple(self._example(value, sizes) for value in stage.sent)
            loss = torch.empty((), dtype=torch.float32, device="meta", requires_grad=True)
            piped = PipelineStage(
                self.module,
                stage.index,
                stage.count,
                self.world.device,
                input_args=inputs,
                output_args=(loss,) if stage.is_last else outputs,
                group=self.world.group("pp"),
            )
            is_alternating = self.options.pp_schedule == "1f1b" and count >= stage.count
            kind = Schedule1F1B if is_alternating else ScheduleGPipe
            # A step's loss has its weight already, so gradients are summed and not divided.
            self._schedules[key] = kind(piped, count, loss_fn=_handed_on, scale_grads=False)
        return self._schedules[key]

    def _example(self, value: Value, sizes: dict[str, int]) -> Tensor:
        """A tensor without storage that says what a value is like."""
        dtype = torch_dtype(resolve_dtype(value.dtype, self.options.dtype))
        shape = tuple(evaluate(dim, sizes) for dim in value.shape)
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)

    def _sum_shared(self) -> None:
        """Gradients of weights that stand on several stages, summed over those."""
        held = dict(self.module.model.named_parameters())
        for name, group in self._groups.items():
            if name not in held:
                continue
            weight = held[name]
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            grad: Any = weight.grad
            dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=group)


def second_copies(module: TrainingModel) -> list[Tensor]:
    """Weights of a stage that an earlier one holds too, so that norms over all ranks count them once."""
    if not isinstance(module, StageModel):
        return []
    held = dict(module.model.named_parameters())
    return [held[name] for name in module.stage.shared if name in module.stage.second_copies and name in held]


def _handed_on(loss: Tensor, targets: Tensor) -> Tensor:
    """The last stage has made the loss itself."""
    return loss


def _sizes(batch: Batch) -> dict[str, int]:
    """What the symbols of the graph's shapes are for a micro-batch."""
    rows, tokens = batch.targets.shape[:2]
    source = batch.inputs["encoder_input_ids"].shape[1] if "encoder_input_ids" in batch.inputs else tokens
    return {"batch": rows, "seq": tokens, "past": 0, "capacity": tokens, "source": source, "memory": source}


def _groups_of(world: World, stage: Stage) -> dict[str, dist.ProcessGroup]:
    """For each weight of this stage that others hold too the ranks that hold the same piece. All ranks of a world call this."""
    made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    assert world.mesh is not None
    lines = world.mesh.mesh.flatten(1).T.tolist()
    for places in dict.fromkeys(stage.shared.values()):
        if len(places) == stage.count:
            made[places] = world.group("pp")
        else:
            own, _ = dist.new_subgroups_by_enumeration([[line[place] for place in places] for line in lines])
            made[places] = own if isinstance(own, dist.ProcessGroup) else None
    return {
        name: group
        for name, places in stage.shared.items()
        if stage.index in places and (group := made[places]) is not None
    }
