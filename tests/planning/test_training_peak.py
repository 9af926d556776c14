"""The peak of a training step is what torch's own tracker of every tensor sees."""

import pytest

import archc
from archc.planning.training.estimate import estimate_training

BATCH, SEQ = 4, 64


def tracked_peak(spec, mode, dtype):
    """The most that lies there in a step with gradients of an earlier one, by torch's tracker of every tensor."""
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("torch was built without distributed")
    from torch.distributed._tools.mem_tracker import MemTracker

    from tests.torch_backend.examples import ids_for

    model = archc.recompute(archc.build(spec, device="cpu", dtype=dtype, seed=0), mode)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    ids = ids_for(model, BATCH, SEQ)
    targets = ids.clone()
    with tracker:
        for is_first in (True, False):
            logits = model(ids)
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
            loss.backward()
            del logits, loss
            if is_first:
                optimizer.step()
                tracker.reset_mod_stats()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def estimated_peak(spec, mode, dtype):
    options = {"micro_batch_size": BATCH, "max_model_len": SEQ, "recompute": mode, "kernels": "cpu"}
    return estimate_training(spec, dtype=dtype, master_weights=False, **options).stages[0]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-deepseek-v3"])
def test_the_peak_is_what_torchs_tracker_of_memory_sees(name, mode, dtype):
    """Where the loss has the peak it is exact, but for ids and targets, made before, and the counts of steps. Where a layer has
    it, gradients of its activations are bounded by its largest tensors."""
    real, rank = tracked_peak(name, mode, dtype), estimated_peak(name, mode, dtype)
    if rank.loss_moment_bytes > rank.layer_moment_bytes:
        assert abs(rank.peak_bytes - real) <= 2 * BATCH * SEQ * 8
    else:
        assert 0.98 < rank.peak_bytes / real < 1.06


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_with_few_ids_a_layers_backward_has_the_peak(mode):
    spec = archc.load_spec("tiny-llama", ["tokenizer.vocab_size=64"])
    rank = estimated_peak(spec, mode, "bfloat16")
    assert rank.layer_moment_bytes > rank.loss_moment_bytes
    assert 0.98 < rank.peak_bytes / tracked_peak(spec, mode, "bfloat16") < 1.06
