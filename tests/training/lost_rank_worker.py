"""One of two ranks that meet in each step; the second is lost in step 4: ``lost_rank_worker.py RANK WORLD MEETING RUN HOW``."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

from archc.training.failures import RankLostError, lock_run, told_of_lost_ranks

TIMEOUT_S = 4
step = 0


def be_lost(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        raise RuntimeError("CUDA out of memory\nTried to allocate 20 GiB")


def main(rank, world, meeting, run, how):
    global step
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT_S)
    )
    lock = lock_run(run, rank, world)
    with told_of_lost_ranks(run, lock, rank=rank, world=world, step=lambda: step, last=lambda: None):
        for step in range(1, 10):
            if rank == 1 and step == 4:
                be_lost(how)
            dist.all_reduce(torch.ones(3))


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5])
    except RankLostError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
