"""Models that tensor parallelism is tried on: one for each way in which heads and channels can be cut."""

import archc

CASES = {
    "llama": ("tiny-llama", ()),
}


def graph_of_case(name):
    spec, overrides = CASES[name]
    return archc.expand(archc.load_spec(spec, overrides))
