"""A small training loop over drawn ids, for what must hold of a run's state whatever its data."""

import torch

from archc.errors import ArchcError
from archc.expansion import as_graph
from archc.planning.parallel import Parallel
from archc.training.clipping import clip_gradients
from archc.training.objectives.batch import Batch
from archc.training.optimizers import make_optimizer
from archc.training.options import TrainOptions
from archc.training.parallel.world import open_world
from archc.training.prepare import prepare
from archc.training.routers import update_biases
from archc.training.schedules import lr_at, set_lr
from archc.training.state import state_of

ROWS, SEQ = 8, 12


class Learner:
    """``learn(n)`` makes n steps and gives their losses, exactly; ``state()`` is what a checkpoint holds."""

    def __init__(self, spec, *, parallel=None, seed=0, **options):
        self.parallel = parallel or Parallel()
        self.options = TrainOptions(
            steps=50,
            seq_len=SEQ,
            batch_size=ROWS,
            warmup_steps=2,
            lr=3e-3,
            seed=seed,
            parallel=self.parallel,
            **options,
        ).check()
        self.world = open_world(self.parallel)
        self.graph = as_graph(spec)
        self.prepared = prepare(self.graph, self.options, self.world)
        self.optimizer = make_optimizer(self.prepared.module, self.options)
        self.done = 0

    def learn(self, steps):
        losses = []
        for _ in range(steps):
            batch, size = self._rows(), self.options.micro_rows
            weight = torch.tensor(1.0 / (ROWS * SEQ))
            set_lr(self.optimizer, lr_at(self.done, self.options))
            parts = [batch.rows(start, start + size) for start in range(0, len(batch), size)]
            loss = self.world.all_sum(self.prepared.engine.forward_backward(parts, weight))
            clip_gradients(self.prepared.module.parameters(), 1.0, self.world, elsewhere=self.prepared.elsewhere)
            self.optimizer.step()
            update_biases(self.prepared.module, self.options, self.world)
            self.optimizer.zero_grad()
            self.done += 1
            losses.append(loss.item())
        return losses

    def _rows(self):
        generator = torch.Generator().manual_seed(1000 + self.done)
        ids = torch.randint(0, self.graph.vocab_size, (ROWS, SEQ + 1), generator=generator)
        own = ROWS // self.parallel.dp
        first = self.world.index("dp") * own
        return Batch({"input_ids": ids[:, :-1]}, ids[:, 1:]).rows(first, first + own)

    def state(self):
        return state_of(self.prepared.module, self.optimizer)

    def save(self, checkpoints, *, wait=False):
        checkpoints.save(self.done, self.state(), {"step": self.done}, wait=wait)

    def load(self, checkpoints, path=None):
        self.done = checkpoints.load(path, self.state())["step"]
        return self


def whole(state):
    """Each tensor as one process would hold it, a copy."""
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).detach().clone() for name, t in state.items()}


def unequal(found, expected):
    """Names whose tensors are not the same to the last bit."""
    assert found.keys() == expected.keys()
    return [name for name in found if not torch.equal(found[name], expected[name])]


def message_of(work):
    """What an error of the user says."""
    try:
        work()
    except ArchcError as error:
        return str(error)
    raise AssertionError("nothing was refused")
