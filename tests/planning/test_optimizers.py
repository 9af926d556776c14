"""States of optimizers have the bytes of torch's and bitsandbytes' own tensors."""

import pytest

from archc.errors import ArchcError
from archc.planning.training.optimizers import OPTIMIZERS, Moved, optimizer_named

SHAPES = ((), (1,), (7,), (5, 6), (1, 9), (9, 1), (64, 64), (4, 16, 24), (3, 1, 4), (4097,), (300, 300))


def expected_bytes(name, moved):
    kept = [tensor for weight in moved for tensor in OPTIMIZERS[name].keeps(weight)]
    return sum(tensor.bytes for tensor in kept if not tensor.on_host), sum(t.bytes for t in kept if t.on_host)


def stepped(torch, cls, shapes, dtype="float32", **options):
    weights = [torch.nn.Parameter(torch.randn(shape, dtype=getattr(torch, dtype))) for shape in shapes]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = cls(weights, **options)
    optimizer.step()
    return optimizer


def real_bytes(optimizer):
    """(bytes of states, bytes of the counts of steps)."""
    tensors = [(key, value) for state in optimizer.state.values() for key, value in state.items()]
    sizes = dict.fromkeys(("state", "step"), 0)
    for key, value in tensors:
        if hasattr(value, "nbytes"):
            sizes["step" if key == "step" else "state"] += value.nbytes
    return sizes["state"], sizes["step"]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "cls", "options"),
    [("adamw", "AdamW", {}), ("adafactor", "Adafactor", {}), ("sgd", "SGD", {"momentum": 0.9})],
)
def test_states_are_those_of_torch_to_the_byte(name, cls, options, dtype):
    torch = pytest.importorskip("torch")
    found = real_bytes(stepped(torch, getattr(torch.optim, cls), SHAPES, dtype, **options))
    assert expected_bytes(name, [Moved(shape, dtype) for shape in SHAPES]) == found


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_muon_keeps_one_momentum_of_a_matrix_and_adamws_states_of_the_rest(dtype):
    """torch.optim.Muon takes two dimensions: stacked experts are as many matrices."""
    torch = pytest.importorskip("torch")
    matrices, others = [(5, 6), (64, 48), *[(16, 24)] * 4], [(7,), (3, 1, 4), (300, 8)]
    muon = real_bytes(stepped(torch, torch.optim.Muon, matrices, dtype))
    adamw = real_bytes(stepped(torch, torch.optim.AdamW, others, dtype))
    moved = [Moved(shape, dtype, is_matrix=True) for shape in ((5, 6), (64, 48), (4, 16, 24))]
    moved += [Moved(shape, dtype) for shape in others]
    assert expected_bytes("muon", moved) == (muon[0] + adamw[0], muon[1] + adamw[1])


@pytest.mark.torch
def test_a_fused_optimizer_counts_its_steps_on_the_device():
    """The counts are as large as elsewhere; only where they lie differs."""
    torch = pytest.importorskip("torch")
    plain, fused = (stepped(torch, torch.optim.AdamW, SHAPES, fused=fused) for fused in (False, True))
    assert real_bytes(plain) == real_bytes(fused) == expected_bytes("adamw", [Moved(s, "float32") for s in SHAPES])


BITSANDBYTES = {100: 800, 4095: 32_760, 4096: 8_320, 5000: 10_160, 100_000: 203_128}
"""Elements -> bytes of state1, state2, absmax1, absmax2 that bitsandbytes 0.50.2's AdamW8bit made on a CPU."""


@pytest.mark.parametrize("elements", sorted(BITSANDBYTES))
def test_8_bit_states_are_those_that_bitsandbytes_makes(elements):
    assert expected_bytes("adamw8bit", [Moved((elements,), "float32")]) == (BITSANDBYTES[elements], 0)


@pytest.mark.torch
def test_8_bit_states_and_tables_are_those_of_the_installed_bitsandbytes():
    torch = pytest.importorskip("torch")
    bitsandbytes = pytest.importorskip("bitsandbytes")
    optimizer = stepped(torch, bitsandbytes.optim.AdamW8bit, SHAPES)
    states = [
        {key: value for key, value in state.items() if not key.startswith("qmap")} for state in optimizer.state.values()
    ]
    tables = {v.data_ptr(): v.nbytes for s in optimizer.state.values() for k, v in s.items() if k.startswith("qmap")}
    found = sum(v.nbytes for state in states for v in state.values() if hasattr(v, "nbytes"))
    assert expected_bytes("adamw8bit", [Moved(shape, "float32") for shape in SHAPES]) == (found, 0)
    assert OPTIMIZERS["adamw8bit"].shared_bytes == sum(tables.values()) == 2048


def test_an_unknown_optimizer_is_said_with_the_nearest_one():
    with pytest.raises(ArchcError, match=r"'adam8bit' is unknown; known: adamw, muon, .*Did you mean adamw8bit\?"):
        optimizer_named("adam8bit")
