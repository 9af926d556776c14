"""The weights of a run as a model folder: the same bits as were trained, and what archc makes of the folder."""

import json
import os

import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.torch import load_file

import archc
from archc.cli.main import archc as command
from archc.spec.resolved import resolved
from archc.torch_backend.weights import load_weights, weights_of
from archc.training.checkpoints import Checkpoints
from archc.training.run_folder import RunFolder
from archc.training.run_weights import export_weights
from tests.training.learner import Learner, message_of, unequal, whole

BYTES = "tokenizer={kind: bytes, bos_token_id: 257, eos_token_id: 256}"
PROMPT = ["--prompt-ids", "5,6,7", "--max-new-tokens", "12", "--ids"]


def run_with(place, spec, *overrides):
    """A run with checkpoints of its second and third step, and the weights that it had then."""
    merged = resolved(spec, overrides)
    learner = Learner(merged.spec)
    run = RunFolder.create(
        place, spec_text=merged.to_yaml(), graph=learner.graph, options=learner.options.to_json(), tokenizer_text="{}"
    )
    held = {}
    with Checkpoints(run.checkpoints) as checkpoints:
        for _ in range(3):
            learner.learn(1)
            learner.save(checkpoints)
            held[learner.done] = {
                name.removeprefix("model."): tensor
                for name, tensor in whole(learner.state()).items()
                if name.startswith("model.")
            }
    return run, held


NAMED = ["--set", "tokenizer.file=tokenizer.json"]
"""The folder's spec names the tokenizer beside it, so that an export finds it."""


@pytest.fixture
def llama(tmp_path):
    return run_with(tmp_path / "run", "tiny-llama")


@pytest.mark.parametrize("spec", ["tiny-llama", "tiny-deepseek-v3", "tiny-kimi-linear"])
def test_weights_of_any_checkpoint_are_those_that_were_trained(tmp_path, spec):
    run, held = run_with(tmp_path / "run", spec)
    for step, out in ((2, "second"), (None, "newest")):
        done = export_weights(run.path, tmp_path / out, step=step)
        expected = held[step or 3]
        assert unequal(load_file(tmp_path / out / "model.safetensors"), expected) == []
        assert (done.step, done.weights) == (step or 3, len(expected))
        assert done.weight_bytes == sum(tensor.nbytes for tensor in expected.values())


def test_the_folder_is_as_archc_build_writes_one(llama, tmp_path):
    run, held = llama
    built = CliRunner().invoke(command, ["build", str(run.spec), "-o", str(tmp_path / "built"), *NAMED])
    assert built.exit_code == 0, built.output
    export_weights(run.path, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == sorted(
        [*os.listdir(tmp_path / "built"), "tokenizer.json", "trained.json"]
    )
    for name in ("graph.json", "spec.yaml"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "built" / name).read_bytes()
    keys, metadata = [], []
    for place in ("out", "built"):
        with safe_open(tmp_path / place / "model.safetensors", framework="pt") as file:
            keys.append(set(file.keys()))
            metadata.append(file.metadata())
    assert keys[0] == keys[1]
    assert metadata[0] == metadata[1]
    model = load_weights(archc.build(tmp_path / "out" / "spec.yaml", device="cpu"), tmp_path / "out")
    assert unequal(weights_of(model), held[3]) == []


def test_another_dtype_is_rounded_once_but_for_what_the_graph_fixes(tmp_path):
    run, held = run_with(tmp_path / "run", "tiny-kimi-linear")
    done = export_weights(run.path, tmp_path / "out", dtype="bf16")
    found = load_file(tmp_path / "out" / "model.safetensors")
    params = archc.build(run.spec).archc_graph.params()
    expected = {name: t.bfloat16() if params[name].dtype == "model" else t for name, t in held[3].items()}
    assert {t.dtype for t in expected.values()} == {torch.bfloat16, torch.float32}
    assert unequal(found, expected) == []
    assert done.dtype == "bfloat16"


def test_an_earlier_export_is_replaced_and_other_files_are_not(llama, tmp_path):
    run, held = llama
    out = tmp_path / "out"
    export_weights(run.path, out, step=1)
    export_weights(run.path, out)
    assert unequal(load_file(out / "model.safetensors"), held[3]) == []
    (out / "notes.txt").write_text("mine")
    before = {name: (out / name).read_bytes() for name in os.listdir(out)}
    assert "holds something else than the weights of a run" in message_of(lambda: export_weights(run.path, out, step=2))
    (tmp_path / "file").write_text("mine")
    assert "is a file; a folder is written" in message_of(lambda: export_weights(run.path, tmp_path / "file"))
    assert {name: (out / name).read_bytes() for name in os.listdir(out)} == before
    assert sorted(os.listdir(tmp_path)) == ["file", "out", "run"]


def test_what_can_not_be_exported_is_told_and_nothing_is_written(llama, tmp_path):
    run, _ = llama
    out = tmp_path / "out"
    assert "no checkpoint of step 9; there are those of 1, 2, 3" in message_of(
        lambda: export_weights(run.path, out, step=9)
    )
    assert "is no run" in message_of(lambda: export_weights(tmp_path, out))
    file = run.checkpoints / "step-00000003" / "rank-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "rank-00000.safetensors has" in message_of(lambda: export_weights(run.path, out))
    run.spec.write_text(run.spec.read_text().replace("num_layers: 4", "num_layers: 3"))
    assert "is not the spec that was trained" in message_of(lambda: export_weights(run.path, out, step=1))
    assert os.listdir(tmp_path) == ["run"]


def test_a_trained_folder_is_converted_generated_from_exported_and_run(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a tiny text about nothing in particular, told again and again. " * 60)

    def invoke(*arguments):
        done = CliRunner().invoke(command, [str(one) for one in arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    size = ["--steps", 6, "--seq-len", 16, "--batch-size", 4, "--checkpoint-every", 2, "--lr", "1e-2"]
    run, model, onnx = (tmp_path / name for name in ("run", "model", "onnx"))
    invoke("train", "tiny-llama", "--set", BYTES, "--data", text, "-o", run, *size)
    done = json.loads(invoke("convert", run, "-o", model, "--step", 4, "--json"))
    assert (done["step"], done["run"]) == (4, str(run))
    told = json.loads((run / "model" / "trained.json").read_text())
    assert told["step"] == 6
    invoke("convert", run / "checkpoints" / "step-00000006", "-o", tmp_path / "again")
    again, own = ((place / "model.safetensors").read_bytes() for place in (tmp_path / "again", run / "model"))
    assert again == own
    written = invoke("generate", run / "model", "--dtype", "fp32", *PROMPT)
    export = ["--weights", run / "model", "--provider", "cpu", "--dtype", "fp32"]
    invoke("export", run / "model" / "spec.yaml", "-o", onnx, *export)
    assert invoke("run", onnx, *PROMPT) == written
    assert len(written.split(",")) == 12


def test_options_that_are_for_other_checkpoints_are_refused(llama, tmp_path):
    run, _ = llama
    for more in (["--to", "hf"], ["--name", "x"], ["--allow-unused", "x*"]):
        done = CliRunner().invoke(command, ["convert", str(run.path), "-o", str(tmp_path / "out"), *more])
        assert done.exit_code == 2
        assert "are for checkpoints of others" in done.output
    done = CliRunner().invoke(command, ["convert", str(tmp_path), "-o", str(tmp_path / "out"), "--step", "3"])
    assert done.exit_code == 2
    assert "are for what archc train wrote" in done.output
