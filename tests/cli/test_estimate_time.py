"""What ``archc estimate --time`` and ``archc hardware`` print, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from archc.planning.hardware import devices
from archc.planning.parallel import Parallel
from archc.planning.timing.estimate import estimate_time
from archc.spec.load import load_spec

Invoke = Callable[..., Result]

KIMI = ("estimate", "kimi-linear-48b-a3b", "--time", "--gpu", "h200", "--max-model-len", "1M")
OWN = """\
my-chip:
  title: Mine
  peak_flops_per_s: {bfloat16: 1e15}
  memory: 64GiB
  bandwidth: 1TB
  link: 100GB
  network: 10GB
  source: a table of mine
"""


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_time_prints_the_roof_the_steps_and_what_bounds_each_part(invoke: Invoke):
    result = invoke(*KIMI, "--tokens", "5.7T")
    assert (result.exit_code, result.stderr) == (0, "")
    found = words(result.stdout)
    assert "kimi-linear-48b-a3b, time: an estimate, not a measurement" in result.stdout
    assert "1 sequence of 1,048,576 tokens on 1 NVIDIA H200 SXM 141 GB (one rank)" in result.stdout
    assert ["dense", "bfloat16", "products", "989.4", "TFLOP/s", "0.7", "692.6", "TFLOP/s"] in found
    assert ["memory,", "141", "GB", "HBM3e", "4,800.0", "GB/s", "0.8", "3,840.0", "GB/s"] in found
    assert "from 180.4 FLOPs a byte on compute sets the time" in result.stdout
    decode = next(row for row in found if row[:1] == ["decode"] and "ms" in row)
    assert decode == ["decode", "3.84", "ms", "1", "260", "3.84", "ms", "-", "13.6%"]
    rows = {tuple(row) for row in found if row[:1] == ["mixer.mla"]}
    assert any("compute" in row and "185,188.4" in row for row in rows)
    assert any("memory" in row and "57.7" in row for row in rows)
    assert "training on 5,700,000,000,000 tokens, FLOPs by archc" in result.stdout
    assert "700 W each, PUE 1.0" in result.stdout
    assert "estimate: a roofline, not a measurement" in result.stdout


def test_time_s_json_is_the_library_s_beside_the_estimate(invoke: Invoke):
    options = ("--batch-size", 5, "--max-model-len", "2k", "--tp", 2, "--dp", 3, "--kv-cache-dtype", "fp8")
    factors = ("--compute-efficiency", 0.5, "--memory-efficiency", 0.6, "--link-efficiency", 0.7, "--overlap", 0.25)
    rest = (
        "--tokens",
        "7e9",
        "--flops-convention",
        "palm",
        "--recompute",
        "full",
        "--micro-batches",
        6,
        "--micro-batch-size",
        2,
    )
    told = json.loads(
        invoke("estimate", "llama-3-8b", "--time", "--gpu", "H100", *options, *factors, *rest, "--json").stdout
    )
    found = estimate_time(
        load_spec("llama-3-8b"),
        gpu="h100",
        batch_size=5,
        max_model_len=2048,
        parallel=Parallel(tp=2, dp=3),
        kv_cache_dtype="fp8",
        compute_efficiency=0.5,
        memory_efficiency=0.6,
        link_efficiency=0.7,
        overlap=0.25,
        tokens=7 * 10**9,
        flops_convention="palm",
        recompute="full",
        micro_batches=6,
        micro_batch_size=2,
    )
    assert told["time"] == json.loads(json.dumps(found.to_json()))
    assert told["time"]["is_measurement"] is False
    assert told["time"]["options"]["batch_size"] == 6
    assert told["flops"]["decode"] > 0


def test_a_published_mfu_takes_the_place_of_the_roofline(invoke: Invoke):
    result = invoke(
        *("estimate", "deepseek-v3", "--time", "--gpu", "h800", "--gpus", 2048, "--max-model-len", "4k"),
        *("--mfu", 0.3909, "--tokens", "14.8T"),
    )
    found = words(result.stdout)
    assert ["MFU", "39.1%", "HFU", "39.1%"] in found
    hours = next(row for row in found if row[:2] == ["device", "hours"])
    assert abs(int(hours[2].replace(",", "")) - 2_664_000) < 3000


def test_an_encoder_has_a_forward_pass_and_no_decode_step(invoke: Invoke):
    result = invoke("estimate", "bert-base-uncased", "--time", "--gpu", "4090")
    assert "forward" in result.stdout
    assert "prefill, one rank" not in result.stdout
    assert "decode, one rank" not in result.stdout
    assert "one token a sequence" not in result.stdout


def test_communication_is_told_by_kind(invoke: Invoke):
    result = invoke("estimate", "llama-3-8b", "--time", "--gpu", "h100", "--gpus", 16, "--max-model-len", "8k")
    assert "(tp 8, dp 2)" in result.stdout
    assert "communication of prefill: all reduce" in result.stdout
    assert "gradients" in result.stdout


def test_serving_and_time_stand_in_one_answer(invoke: Invoke):
    text = invoke("estimate", "llama-3-8b", "--serve", "--time", "--gpu", "h100", "--max-model-len", "8k").stdout
    assert text.index("llama-3-8b, served") < text.index("llama-3-8b, time: an estimate, not a measurement")
    told = json.loads(invoke("estimate", "llama-3-8b", "--serve", "--time", "--gpu", "h100", "--json").stdout)
    assert {"serving", "time"} <= set(told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--time needs a device: --gpu NAME, as archc hardware lists them"),
        (("--gpu", "h20"), "device 'h20' is unknown. Did you mean h200-sxm?"),
        (("--gpu", "h100", "--tp", 5), "can't be cut into 5"),
        (("--gpu", "h100", "--flops-convention", "plam"), "FLOP convention 'plam' is unknown. Did you mean palm?"),
        (("--gpu", "h100", "--mfu", "1.5"), "1.5 is not in the range 0<x<=1"),
        (("--gpu", "h100", "--tokens", "15.6X"), "'15.6X' is no count; counts are written as 7e9, 7B"),
        (("--gpu", "h100", "--max-model-len", "4kb"), "'4kb' is no length"),
        (("--gpu", "h100", "--hardware", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("--gpu", "tpu-v5p", "--dtype", "f32"), "tpu-v5p: no peak is stated for float32"),
    ],
)
def test_what_can_t_be_is_one_line_and_exit_code_2(invoke: Invoke, options: tuple[object, ...], message: str):
    result = invoke("estimate", "llama-3-8b", "--time", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_an_option_of_time_without_it_is_a_usage_error(invoke: Invoke):
    result = invoke("estimate", "llama-3-8b", "--mfu", 0.4, "--gpu", "h100")
    assert result.exit_code == 2
    assert "--mfu belongs to --time" in result.stderr


def test_a_device_of_ones_own_is_read_from_a_file(invoke: Invoke, tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    result = invoke("estimate", "llama-3-8b", "--time", "--serve", "--gpu", "my-chip", "--hardware", file)
    assert result.exit_code == 0
    assert "Mine (one rank)" in result.stdout
    assert "1,000.0 TFLOP/s" in result.stdout
    assert (
        "unknown: no power is published"
        in invoke("estimate", "llama-3-8b", "--time", "--gpu", "my-chip", "--hardware", file, "--tokens", "1B").stdout
    )
    file.write_text(OWN.replace("1e15", "x"))
    broken = invoke("estimate", "llama-3-8b", "--time", "--gpu", "my-chip", "--hardware", file)
    assert broken.exit_code == 2
    assert f"{file}:3:32: my-chip.peak_flops_per_s.bfloat16: 'x' is no count" in broken.stderr


def test_hardware_lists_the_catalogue(invoke: Invoke):
    found = words(invoke("hardware").stdout)
    assert ["h100-sxm", "989.4", "1,978.9", "66.9", "79.647", "GiB", "3,350", "450", "700"] in found
    assert ["tpu-v5p", "459.0", "459.0", "-", "95.000", "GiB", "2,765", "600", "-"] in found
    assert {row[0] for row in found} >= set(devices())


def test_hardware_tells_all_of_one_device_with_its_source(invoke: Invoke):
    text = invoke("hardware", "nvidia h200").stdout
    assert text.startswith("h200-sxm: NVIDIA H200 SXM 141 GB\n")
    assert "source: NVIDIA H200 Tensor Core GPU datasheet" in text
    assert "with sparsity" in text
    told = json.loads(invoke("hardware", "h200", "--json").stdout)
    assert told["h200-sxm"]["memory_bytes"] == 143_771 * 2**20
    assert list(json.loads(invoke("hardware", "--json").stdout)) == list(devices())


def test_hardware_names_the_nearest_of_an_unknown_device_and_checks_a_file(invoke: Invoke, tmp_path: Path):
    unknown = invoke("hardware", "b20")
    assert unknown.exit_code == 2
    assert "Did you mean b200-sxm?" in unknown.stderr
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    assert json.loads(invoke("hardware", "--hardware", file, "--json").stdout).keys() == {"my-chip"}
    file.write_text(OWN.replace("link: 100GB", "link: 100"))
    assert invoke("hardware", "--hardware", file).exit_code == 0
    file.write_text(OWN.replace("link: 100GB", "lnik: 100GB"))
    broken = invoke("hardware", "--hardware", file)
    assert broken.exit_code == 2
    assert "my-chip.lnik: unknown key. Did you mean link?" in broken.stderr


def test_no_table_of_a_large_model_is_wider_than_100_columns_and_none_of_a_vast_one_runs_away(invoke: Invoke):
    options = ("--time", "--max-model-len", "128k", "--batch-size", 8, "--tokens", "15.6T")
    for gpu in ("mi300x", "b200", "cpu"):
        text = invoke("estimate", "llama-3.1-405b", "--gpu", gpu, *options).stdout
        tables = text[text.index("roof (") : text.index("training on")].splitlines()
        assert max(len(line) for line in tables if "source:" not in line) <= 100
    vast = ("--time", "--gpu", "h100", "--max-model-len", "1e15", "--batch-size", 1 << 40, "--tokens", "1e15")
    text = invoke("estimate", "llama-3-8b", *vast).stdout
    assert max(map(len, text.splitlines())) <= 120
    # 6 P T and the pairs of 32 layers of 4,096 channels, in whole.
    told = json.loads(invoke("estimate", "llama-3-8b", *vast, "--json").stdout)["time"]
    tokens = 10**15
    layers, head = 8_030_261_248 - 2 * 525_336_576 - 266_240, 525_336_576
    pairs = 4 * 4096 * 32 * tokens * (tokens + 1) // 2
    assert told["budget"]["training_flops"] == 3 * (2 * (layers + head) * tokens + pairs)
    assert told["steps"]["train_step"]["flops"] == told["budget"]["training_flops"] << 40


def test_what_is_wrong_with_any_part_is_told_at_once_and_each_thing_once(invoke: Invoke):
    options = ("--gpu", "h20", "--tp", 3, "--optimizer", "adamx", "--flops-convention", "plam")
    result = invoke("estimate", "llama-3-8b", "--serve", "--train", "--time", *options)
    assert result.exit_code == 2
    for text in (
        "device 'h20' is unknown. Did you mean h200-sxm?",
        "8 kv_heads of attn (layers.0 and 31 others) can't be cut into 3 (tp)",
        "optimizer: 'adamx' is unknown",
        "FLOP convention 'plam' is unknown. Did you mean palm?",
    ):
        assert result.stderr.count(text) == 1


def test_devices_that_stated_copies_leave_share_heads_for_serving_and_time_alike(invoke: Invoke):
    options = ("--serve", "--time", "--gpu", "h100", "--gpus", 8, "--dp", 2, "--max-model-len", "4k", "--json")
    told = json.loads(invoke("estimate", "llama-3-8b", *options).stdout)
    assert told["time"]["options"]["parallel"] == {"tp": 4, "pp": 1, "ep": 1, "dp": 2, "cp": 1}
    assert told["serving"]["parallel"] == told["time"]["options"]["parallel"]
