"""One rank of runs whose checkpoints change worlds: ``python checkpoint_worker.py RANK WORLD RENDEZVOUS FOLDER``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

from archc import Parallel
from archc.training.checkpoints import Checkpoints
from tests.training.compared import as_rank
from tests.training.learner import Learner, message_of, unequal, whole

SPECS = ("tiny-llama", "tiny-deepseek-v3")
STEPS, TOLERANCE = 3, 2e-5
ONE, FOUR, SQUARE, TWO = "of-one", "of-four", "of-dp-and-tp", "of-two"


def near(found, expected):
    return all(abs(one - other) <= TOLERANCE * abs(other) for one, other in zip(found, expected, strict=True))


def expected_of(folder, spec, source):
    return torch.load(folder / spec / f"{source}.pt", weights_only=True)


def save_and_go_on(run, folder, spec, source):
    """A checkpoint, and beside it what is in it and what the next losses are."""
    checkpoints = Checkpoints(folder / spec / source)
    state = whole(run.state())
    run.save(checkpoints)
    losses = run.learn(STEPS)
    checkpoints.finish()
    if run.world.is_first:
        torch.save({"state": state, "losses": losses}, folder / spec / f"{source}.pt")
    return losses


def go_on(folder, spec, source, parallel):
    """A checkpoint of any world in this one: the same bits, and the same losses within rounding."""
    run = Learner(spec, parallel=parallel, seed=5).load(Checkpoints(folder / spec / source))
    expected = expected_of(folder, spec, source)
    state = whole(run.state())
    assert unequal(state, {name: expected["state"][name] for name in state}) == []
    losses = run.learn(STEPS)
    assert near(losses, expected["losses"]), (spec, parallel, losses, expected["losses"])
    print(f"went on: {spec} {source} {parallel}", flush=True)
    return run


def four(folder):
    for spec in SPECS:
        run = go_on(folder, spec, ONE, Parallel(dp=4))
        save_and_go_on(run, folder, spec, FOUR)
        assert len(list((folder / spec / FOUR).glob("*/*.safetensors"))) == 4
    go_on(folder, "tiny-llama", ONE, Parallel(dp=2, pp=2))
    save_and_go_on(go_on(folder, "tiny-llama", ONE, Parallel(dp=2, tp=2)), folder, "tiny-llama", SQUARE)
    go_on(folder, "tiny-deepseek-v3", ONE, Parallel(dp=4, ep=2))


def two(folder):
    for spec in SPECS:
        run = go_on(folder, spec, FOUR, Parallel(dp=2))
        losses = save_and_go_on(run, folder, spec, TWO)
        again = Learner(spec, parallel=Parallel(dp=2), seed=6).load(Checkpoints(folder / spec / TWO))
        assert again.learn(STEPS) == losses
        assert unequal(whole(again.state()), whole(run.state())) == []
        print(f"to the last bit: {spec}", flush=True)
    go_on(folder, "tiny-llama", SQUARE, Parallel(pp=2))
    go_on(folder, "tiny-deepseek-v3", FOUR, Parallel(tp=2))
    refused(folder)


def refused(folder):
    """What is wrong on one rank is said on all, and none waits for ever."""
    checkpoints = Checkpoints(folder / SPECS[0] / FOUR)
    state = Learner(SPECS[0], parallel=Parallel(dp=2)).state()
    if dist.get_rank() == 1:
        state["model.more"] = torch.zeros(3)
    assert "model.more is not in it" in message_of(lambda: checkpoints.load(None, state))
    file = checkpoints.latest() / "rank-00002.safetensors"
    data = file.read_bytes()
    dist.barrier()
    if dist.get_rank() == 0:
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    dist.barrier()
    state.pop("model.more", None)
    assert "rank-00002.safetensors was changed" in message_of(lambda: checkpoints.load(None, state))
    dist.barrier()
    if dist.get_rank() == 0:
        file.write_bytes(data)
    print("refused", flush=True)


def main(size):
    {4: four, 2: two}[size](Path(sys.argv[4]))


if __name__ == "__main__":
    as_rank(main)
