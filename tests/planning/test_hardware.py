"""The catalogue of devices: what its vendors state, how a device is found, and what is wrong with a file of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from archc.errors import ArchcError, SpecError
from archc.planning.hardware import devices, find_device

GB = 10**9

OWN = """\
my-chip:
  title: Mine
  aliases: [h100, chip]
  peak_flops_per_s: {bfloat16: 1e15, int8: 2000T}
  memory: 64GiB
  bandwidth: 1.5TB
  link: 100GB
  link_devices: 4
  network: 10GB
  power_w: 300
  source: a table of mine
"""


@pytest.mark.parametrize(
    ("name", "bfloat16_tflops", "bandwidth_gb", "link_both_ways_gb", "power_w"),
    [
        ("a100", 312, 2039, 600, 400),
        ("a100-40gb", 312, 1555, 600, 400),
        ("h100", 989.4, 3350, 900, 700),
        ("h100-pcie", 756, 2000, 128, 350),
        ("h200", 989.4, 4800, 900, 700),
        ("h800", 989.4, 3350, 400, 700),
        ("b200", 2250, 8000, 1800, 1000),
        ("mi300x", 1307.4, 5300, 896, 750),
        ("l40s", 362.05, 864, 64, 350),
        ("rtx-4090", 165.2, 1008, 64, 450),
        ("tpu-v5p", 459, 2765, 1200, None),
        ("cpu", 14.7456, 460.8, 128, 360),
    ],
)
def test_a_device_has_the_dense_figures_of_its_vendor(
    name: str, bfloat16_tflops: float, bandwidth_gb: float, link_both_ways_gb: float, power_w: int | None
):
    device = find_device(name)
    assert device.peak("bfloat16") == (round(bfloat16_tflops * 1e12), "bfloat16")
    assert device.bandwidth_bytes_per_s == round(bandwidth_gb * GB)
    assert device.link_bytes_per_s * 2 == link_both_ways_gb * GB
    assert device.power_w == power_w


def test_memory_is_what_a_driver_reports_and_never_less_than_the_label_says():
    labels = {"a100": 80, "h100": 80, "h200": 141, "h800": 80, "b200": 180, "mi300x": 192, "l40s": 48, "rtx-4090": 24}
    for name, label_gb in labels.items():
        assert label_gb * GB <= find_device(name).memory_bytes <= label_gb * 2**30, name
    assert find_device("h200").memory_bytes == 143_771 * 2**20
    assert find_device("tpu-v5p").memory_bytes == 95 * 2**30


def test_every_device_names_its_source_and_says_whether_its_datasheet_counts_sparsity():
    for device in devices().values():
        assert device.source, device.name
        assert device.url.startswith("https://"), device.name
    for name in ("h100", "h100-pcie", "h200", "b200"):
        assert "with sparsity" in find_device(name).notes, name


def test_eight_bit_peaks_are_twice_the_sixteen_bit_ones_where_there_are_any():
    for device in devices().values():
        peaks = device.peak_flops_per_s
        if "float8_e4m3fn" in peaks and device.name != "tpu-v5p":
            assert peaks["float8_e4m3fn"] / peaks["bfloat16"] == pytest.approx(2, rel=0.015), device.name


def test_a_dtype_without_products_of_its_own_is_widened():
    a100 = find_device("a100")
    assert a100.peak("float8_e4m3fn") == (312 * 10**12, "bfloat16")
    assert a100.peak("int8") == (624 * 10**12, "int8")
    assert find_device("cpu").peak("int4") == (14_745_600_000_000, "bfloat16")
    assert find_device("cpu").peak("float16") == (14_745_600_000_000, "bfloat16")
    assert find_device("l40s").peak("float32") == (91_600_000_000_000, "float32")
    with pytest.raises(ArchcError, match=r"tpu-v5p: no peak is stated for float32 \(there is bfloat16"):
        find_device("tpu-v5p").peak("float32")


@pytest.mark.parametrize("text", ["H100", "h100-sxm", "H100 SXM", "nvidia h100", "NVIDIA-H100_80GB"])
def test_a_name_is_found_in_any_spelling(text: str):
    assert find_device(text).name == "h100-sxm"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("h20", "Did you mean h200-sxm?"),
        ("rtx4900", "Did you mean rtx-4090?"),
        ("zzz", "Known are a100"),
        ("", "Known"),
    ],
)
def test_an_unknown_device_is_an_error_with_the_nearest(text: str, hint: str):
    with pytest.raises(ArchcError) as found:
        find_device(text)
    assert f"device {text!r} is unknown. {hint}" in str(found.value)


def test_a_file_of_ones_own_comes_before_the_catalogue(tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    chip = find_device("H100", file)
    assert (chip.name, chip.peak("int8"), chip.memory_bytes) == ("my-chip", (2 * 10**15, "int8"), 64 * 2**30)
    assert chip.peak("bfloat16") == (10**15, "bfloat16")
    assert chip.bandwidth_bytes_per_s == 1_500 * GB
    assert find_device("h100-sxm", file).title == "NVIDIA H100 SXM5 80 GB"
    assert list(devices(file)) == ["my-chip"]


def test_every_problem_of_a_file_is_told_at_once_with_its_line(tmp_path: Path):
    file = tmp_path / "bad.yaml"
    text = OWN.replace("64GiB", "64G").replace("bandwidth:", "bandwidht:").replace("int8:", "int9:").replace("300", "x")
    file.write_text(text + "other: 3\nchip: {title: T}\nCHIP: {title: T, link_devices: 0}\n")
    with pytest.raises(SpecError) as found:
        devices(file)
    told = [str(problem).removeprefix(f"{file}:") for problem in found.value.problems]
    for line in (
        "5:11: my-chip.memory: '64G' is no number of bytes; sizes are written as 2GB (2,000,000,000) or 2GiB (2,147,483,648)",
        "6:3: my-chip.bandwidht: unknown key. Did you mean bandwidth?",
        "1:1: my-chip.bandwidth: is missing",
        "10:12: my-chip.power_w: should be a valid integer (found x)",
        "12:1: other: should be a mapping of a device's figures",
        "4:44: my-chip.peak_flops_per_s.int9: is no dtype. Did you mean int8?",
        "13:1: chip.memory: is missing",
        "14:1: CHIP: 'CHIP' names my-chip, too",
        "14:32: CHIP.link_devices: should be at least 1 (found 0)",
    ):
        assert line in told
    assert [problem.line for problem in found.value.problems] == sorted(p.line for p in found.value.problems)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("int8", "int9"), "my-chip.peak_flops_per_s.int9: is no dtype. Did you mean int8?"),
        (("link: 100GB", "link: 0"), "should be at least 1"),
        (("link: 100GB", "link: [1]"), "my-chip.link: '[1]' is no number of bytes; sizes are written as 2GB"),
        (("1.5TB", "1e400"), "too large a number"),
        (("[h100, chip]", "[my-chip, chip]\n  called: x"), "my-chip.called: unknown key"),
        (("source: a table of mine", "source: {}"), "my-chip.source: should be a valid string"),
    ],
)
def test_a_wrong_figure_is_an_error_at_its_place(tmp_path: Path, change: tuple[str, str], message: str):
    file = tmp_path / "bad.yaml"
    file.write_text(OWN.replace(*change))
    with pytest.raises(SpecError) as found:
        devices(file)
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "none.yaml: the file of devices is empty"),
        ("# nothing yet\n", "none.yaml: the file of devices is empty"),
        ("[]", "none.yaml: a file of devices is a mapping of keys to values"),
        ("a: [", "none.yaml:2:1: not YAML"),
        ("{}", "none.yaml: there is no device in it"),
    ],
)
def test_a_file_without_a_device_is_an_error(tmp_path: Path, text: str, message: str):
    file = tmp_path / "none.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as found:
        devices(file)
    assert message in str(found.value)


def test_the_catalogue_is_in_the_wheel_s_package():
    from importlib.resources import files

    assert (files("archc.planning") / "hardware.yaml").is_file()
