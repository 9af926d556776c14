"""What autograd keeps between the loss and its backward is what ``archc estimate --train`` says of archc train's own step."""

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.planning.training.estimate import estimate_training  # noqa: E402
from archc.testing.activations import kept_bytes  # noqa: E402
from archc.training.module import TrainingModel  # noqa: E402
from tests.torch_backend.examples import ids_for  # noqa: E402

pytestmark = pytest.mark.torch

BATCH, SEQ = 4, 64
MODELS = ("tiny-llama", "tiny-kimi-linear", "tiny-deepseek-v3", "tiny-gpt-oss", "tiny-qwen3-next", "tiny-t5")


def step_of(name, dtype, *, recompute="none", chunk=None):
    """A training module and a micro-batch of it."""
    model = archc.recompute(archc.build(name, device="cpu", dtype=dtype, seed=0), recompute)
    ids = ids_for(model, BATCH, SEQ)
    inputs = {"input_ids": ids}
    if "encoder_input_ids" in archc.expand(name if not isinstance(name, str) else archc.load_spec(name)).inputs:
        inputs["encoder_input_ids"] = ids.clone()
    return TrainingModel(model, loss_chunk=chunk), inputs, ids.roll(-1, 1)


class Run:
    """Something that is done with a model."""

    def __init__(self, act):
        self.act = act

    def run(self, model):
        return self.act()


def estimated(name, dtype, recompute="none", chunk=None, **options):
    found = estimate_training(
        name,
        dtype=dtype,
        micro_batch_size=BATCH,
        max_model_len=SEQ,
        recompute=recompute,
        loss="fused",
        loss_chunk=chunk,
        kernels="cpu",
        master_weights=False,
        **options,
    )
    return found.stages[0]


@pytest.mark.parametrize(("dtype", "chunk"), [("float32", None), ("bfloat16", 48)], ids=["at once", "in chunks"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", MODELS)
def test_a_steps_saved_tensors_are_activations_and_loss_to_the_byte(name, recompute, dtype, chunk):
    module, inputs, targets = step_of(name, dtype, chunk=chunk)
    weight = torch.tensor(1 / targets.numel())
    kept = kept_bytes(module.model, Run(lambda: module(inputs, targets, weight)), recompute)
    rank = estimated(name, dtype, recompute, chunk)
    assert rank.activation_bytes + rank.loss.saved == kept


def allocated_at_most(run):
    """The most that a call holds of what it allocates, in bytes, by torch's profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chunk", [None, 64], ids=["at once", "in chunks"])
@pytest.mark.parametrize("ids", [1024, 32768])
def test_the_most_that_a_step_allocates_is_what_the_estimate_says(ids, chunk, dtype):
    spec = archc.load_spec("tiny-llama", [f"tokenizer.vocab_size={ids}", "embedding.tie_word_embeddings=false"])
    module, inputs, targets = step_of(spec, dtype, recompute="full", chunk=chunk)
    weight = torch.tensor(1 / targets.numel())

    def step():
        module(inputs, targets, weight).backward()

    # Gradients are there from the first micro-batch on.
    step()
    rank = estimated(spec, dtype, "full", chunk)
    real = allocated_at_most(step) + rank.weights.resident
    assert 0.97 < rank.peak_bytes / real < 1.01
    if rank.loss_moment_bytes > rank.layer_moment_bytes and ids > 1024:
        assert 0.96 < (rank.peak_bytes - rank.weights.resident) / (real - rank.weights.resident) <= 1.0
