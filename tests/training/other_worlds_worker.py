"""One rank of runs that go on under other plans: ``python other_worlds_worker.py RANK WORLD RENDEZVOUS DATA RUNS``."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import archc
from tests.training.compared import as_rank
from tests.training.worlds import CHAINS, ON_THE_WAY, STEPS_EACH, options_of


def main(size):
    data, runs = sys.argv[4], Path(sys.argv[5])
    for spec, plans in CHAINS.items():
        # The first steps were those of one process.
        for number, plan in enumerate(plans, 2):
            parallel, more = options_of(plan)
            stated = {**ON_THE_WAY, **more, "steps": number * STEPS_EACH}
            found = archc.train(spec, data=data, output=runs / spec, resume=True, parallel=parallel, **stated)
            numbers = [[record.loss, record.grad_norm] for record in found.records]
            print(json.dumps([spec, plan, numbers, found.eval_loss]), flush=True)


if __name__ == "__main__":
    as_rank(main)
