"""All figures that need time or quiet, as ratios against peers in one run each: `make bench`.

python benchmarks/run.py [--quick]

The last two scripts make the peers' own environment first, .bench-venv, 2 GB; models and exports in it take 5 GB more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = [
    ("cold_estimate.py", [], []),
    ("sweep.py", [], ["--rounds", "1"]),
    ("build_meta.py", [], ["--rounds", "2"]),
    ("decode_overhead.py", [], ["--rounds", "4"]),
    ("kda_operator.py", [], ["--rounds", "2"]),
    ("torch_models.py", [], ["--lengths", "512", "--rounds", "2"]),
    ("train.py", [], ["--lengths", "512", "--rounds", "2"]),
    ("export_peers.py", ["--measure-v3", "--measure-dynamo", "4"], ["--rounds", "1"]),
    ("ort_engines.py", [], ["--rounds", "2", "--threads", "2", "--lengths", "512"]),
    ("decode_apart.py", [], ["--turns", "1"]),
    ("full_width.py", [], []),
    ("generate.py", [], ["--lengths", "128", "--rounds", "2", "--new-tokens", "17"]),
    ("convert.py", ["--load"], []),
    ("local_global_memory.py", [], ["--lengths", "1024", "4096"]),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, short lengths: to see that it runs")
    quick = parser.parse_args().quick
    for script, full, short in SCRIPTS:
        words = [sys.executable, "-W", "ignore", str(HERE / script), *(short if quick else full)]
        print(f"\n=== {script} {' '.join(words[4:])}", flush=True)
        subprocess.run(words, check=True, cwd=HERE)


if __name__ == "__main__":
    main()
