"""``archc.train`` as a whole: runs, resumed runs, other dtypes, and what it refuses."""

import json
import os
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.errors import ArchcError, SpecError  # noqa: E402
from archc.training.sample_text import sample_text  # noqa: E402

pytestmark = pytest.mark.torch

BYTES = ("tokenizer=bytes",)
STATED = {
    "steps": 6,
    "seq_len": 32,
    "batch_size": 4,
    "lr": 3e-3,
    "warmup_steps": 1,
    "schedule": "constant",
    "overrides": BYTES,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(sample_text(characters=8000), "utf-8")
    return path


def losses(result):
    return [record.loss for record in result.records]


@pytest.mark.parametrize(
    ("spec", "more"),
    [
        ("tiny-llama", {}),
        ("tiny-kimi-linear", {"router_bias_rate": 0.01, "balance_loss": 0.01}),
        ("tiny-deepseek-v3", {"optimizer": "muon", "lr": 1e-3, "micro_batch_size": 2}),
        ("tiny-gpt-oss", {"optimizer": "sgd", "lr": 0.1}),
    ],
)
def test_a_run_that_goes_on_has_the_losses_of_one_that_never_stopped_to_the_bit(spec, more, data, tmp_path):
    stated = {**STATED, **more}
    whole = archc.train(spec, data=data, **stated)
    run = tmp_path / "run"
    first = archc.train(spec, data=data, output=run, **{**stated, "steps": 3})
    rest = archc.train(spec, data=data, output=run, resume=True, **stated)
    assert losses(first) + losses(rest) == losses(whole)
    assert [record.grad_norm for record in rest.records] == [record.grad_norm for record in whole.records[3:]]
    trained = archc.load_weights(archc.build(run / "model/spec.yaml", device="cpu"), run / "model")
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, trained.get_parameter(name)), name


def test_losses_fall(data):
    found = archc.train("tiny-llama", data=data, **{**STATED, "steps": 40})
    assert losses(found)[0] > 5
    assert losses(found)[-1] < 4
    assert found.tokens == 40 * 4 * 32 - sum(4 * 32 - record.step_tokens for record in found.records)


@pytest.mark.parametrize(
    "more", [{"recompute": "full"}, {"recompute": "selective"}, {"loss_chunk": 48}, {"micro_batch_size": 1}]
)
def test_how_a_step_is_computed_does_not_change_its_numbers(more, data):
    # adamw's first steps are signs of gradients, which would make any rounding large.
    stated = {**STATED, "optimizer": "sgd", "lr": 0.02}
    plain, other = (archc.train("tiny-kimi-linear", data=data, **{**stated, **how}) for how in ({}, more))
    bound = 0 if "recompute" in more else 1e-6
    assert losses(other) == pytest.approx(losses(plain), rel=bound, abs=0)


def test_bfloat16_computes_over_float32_weights(data, tmp_path):
    plain = archc.train("tiny-llama", data=data, **STATED)
    found = archc.train("tiny-llama", data=data, dtype="bfloat16", output=tmp_path / "run", **STATED)
    assert losses(found) == pytest.approx(losses(plain), rel=2e-2)
    assert losses(found) != losses(plain)
    held = archc.load_weights(archc.build(tmp_path / "run/model/spec.yaml", device="cpu"), tmp_path / "run/model")
    rounded = [weight for weight in held.parameters() if torch.equal(weight, weight.bfloat16().float())]
    assert len(rounded) < len(list(held.parameters())) / 2, "the masters are bfloat16"


@pytest.mark.parametrize("zero", [2, 3])
def test_weights_that_were_looked_at_are_saved_in_float32_with_all_their_states(zero, data, tmp_path):
    run = tmp_path / "run"
    stated = {**STATED, "dtype": "bfloat16", "zero": zero, "held_out": 0.1, "eval_every": 1, "eval_batches": 1}
    whole = archc.train("tiny-llama", data=data, **stated)
    first = archc.train("tiny-llama", data=data, output=run, **{**stated, "steps": 3})
    tensors = json.loads((first.checkpoint / "manifest.json").read_text())["tensors"]
    assert {one["dtype"] for one in tensors.values()} == {"F32"}
    assert len(tensors) == 4 * sum(name.startswith("model.") for name in tensors)
    rest = archc.train("tiny-llama", data=data, output=run, resume=True, **stated)
    assert losses(first) + losses(rest) == losses(whole)


def test_compiled_layers_give_the_same_losses(data):
    stated = {**STATED, "steps": 2, "overrides": (*BYTES, "stack.num_layers=2")}
    plain, compiled = (archc.train("tiny-llama", data=data, compile=how, **stated) for how in (False, True))
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-5)


def test_a_run_may_begin_from_weights(data, tmp_path):
    run = tmp_path / "first"
    first = archc.train("tiny-llama", data=data, output=run, **STATED)
    second = archc.train("tiny-llama", data=data, weights=run / "model", seed=1, **{**STATED, "steps": 1})
    assert second.records[0].loss < losses(first)[2] < losses(first)[0]


def test_numbers_that_are_none_stop_a_run_and_keep_the_last_good_checkpoint(data, tmp_path):
    stated = {**STATED, "steps": 40, "lr": 1e18, "clip_norm": None, "optimizer": "sgd", "warmup_steps": 0}
    found = archc.train("tiny-llama", data=data, output=tmp_path / "run", checkpoint_every=1, keep=3, **stated)
    assert found.ending == "stopped"
    assert "is nan" in found.reason or "is inf" in found.reason
    assert found.checkpoint is not None
    meta = json.loads((found.checkpoint / "manifest.json").read_text())["meta"]
    assert meta["step"] == found.step == int(found.checkpoint.name.removeprefix("step-"))


def test_a_damaged_checkpoint_is_named_with_the_one_that_a_run_may_go_on_from(data, tmp_path):
    run = tmp_path / "run"
    found = archc.train("tiny-llama", data=data, output=run, checkpoint_every=2, **{**STATED, "steps": 4})
    newest = found.checkpoint
    file = newest / "rank-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ArchcError) as refused:
        archc.train("tiny-llama", data=data, output=run, resume=True, **STATED)
    assert "rank-00000.safetensors was changed since it was written" in str(refused.value)
    earlier = newest.with_name("step-00000002")
    assert f"{earlier} is the newest other one: move step-00000004 elsewhere to go on from it" in str(refused.value)
    newest.rename(tmp_path / "damaged")
    whole = archc.train("tiny-llama", data=data, **STATED)
    rest = archc.train("tiny-llama", data=data, output=run, resume=True, **STATED)
    assert losses(rest) == losses(whole)[2:]


def test_what_cannot_be_removed_of_a_killed_run_is_an_error_of_the_user(data, tmp_path):
    run = tmp_path / "run"
    archc.train("tiny-llama", data=data, output=run, **{**STATED, "steps": 1})
    # No folder, so that removing it as one fails, also for root.
    (run / "checkpoints/.step-00000009.saving").write_text("")
    with pytest.raises(ArchcError, match="what a killed run has left can't be removed"):
        archc.train("tiny-llama", data=data, output=run, resume=True, **STATED)


def test_ctrl_c_ends_the_step_saves_it_and_the_run_goes_on_later(data, tmp_path):
    class Interrupting:
        def __getattr__(self, name):
            return lambda *args: None

        def on_step(self, record):
            if record["step"] == 2:
                os.kill(os.getpid(), signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    whole = archc.train("tiny-llama", data=data, **STATED)
    run = tmp_path / "run"
    found = archc.train("tiny-llama", data=data, output=run, watchers=[Interrupting()], **STATED)
    assert found.ending == "interrupted"
    assert found.checkpoint is not None
    assert found.step == 3
    rest = archc.train("tiny-llama", data=data, output=run, resume=True, **STATED)
    assert losses(rest) == losses(whole)[3:]


def test_the_learning_rate_and_tokens_are_said_of_each_step(data, tmp_path):
    run = tmp_path / "run"
    found = archc.train("tiny-llama", data=data, output=run, **{**STATED, "warmup_steps": 2})
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 7))
    assert [line["lr"] for line in lines] == pytest.approx([1.5e-3, 3e-3, 3e-3, 3e-3, 3e-3, 3e-3])
    assert [line["loss"] for line in lines] == losses(found)
    assert lines[-1]["tokens"] == found.tokens


class TestRefusals:
    def test_another_spec_in_the_run_folder(self, data, tmp_path):
        archc.train("tiny-llama", data=data, output=tmp_path / "run", **{**STATED, "steps": 1})
        before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
        with pytest.raises(ArchcError, match="another run"):
            archc.train("tiny-gpt-oss", data=data, output=tmp_path / "run", resume=True, **STATED)
        with pytest.raises(ArchcError, match=r"lr: 0.003 in the run, 0.1 now"):
            archc.train("tiny-llama", data=data, output=tmp_path / "run", resume=True, **{**STATED, "lr": 0.1})
        with pytest.raises(ArchcError, match="is a run already"):
            archc.train("tiny-llama", data=data, output=tmp_path / "run", **STATED)
        after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
        assert {path for path in before if ".locks" not in str(path)} <= set(after)
        assert all(after[path] == text for path, text in before.items() if ".locks" not in str(path))

    def test_bad_data_leaves_nothing_behind(self, tmp_path):
        text = tmp_path / "empty.txt"
        text.write_text("")
        with pytest.raises(ArchcError, match=r"empty\.txt"):
            archc.train("tiny-llama", data=text, output=tmp_path / "run", **STATED)
        text.write_bytes(b"abc\x00\xff" * 100)
        with pytest.raises(ArchcError, match=r"empty\.txt"):
            archc.train("tiny-llama", data=text, output=tmp_path / "run", **STATED)
        text.write_text("short")
        with pytest.raises(ArchcError, match="tokens"):
            archc.train("tiny-llama", data=text, output=tmp_path / "run", **STATED)
        assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]

    def test_every_bad_option_is_told_at_once(self, data):
        with pytest.raises(SpecError) as caught:
            archc.train(
                "tiny-llama", data=data, **{**STATED, "schedule": "cosin", "steps": 0, "zero": 1, "betas": (0.9, 1.5)}
            )
        messages = str(caught.value)
        for words in ("cosine", "steps should be at least 1", "zero should be 2 or 3", "betas"):
            assert words in messages

    def test_ranks_that_were_not_started(self, data):
        with pytest.raises(ArchcError, match="torchrun --nproc-per-node 2"):
            archc.train("tiny-llama", data=data, parallel=archc.Parallel(tp=2), **STATED)

    def test_a_vocabulary_that_does_not_match(self, data, tmp_path):
        archc.train("tiny-llama", data=data, output=tmp_path / "run", **{**STATED, "steps": 1})
        small = {**STATED, "overrides": ("tokenizer={kind: external, vocab_size: 100}",)}
        with pytest.raises(ArchcError, match="vocabulary that does not match"):
            archc.train("tiny-llama", data=data, tokenizer=tmp_path / "run/tokenizer.json", **small)
