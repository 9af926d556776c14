"""Devices for people."""

from __future__ import annotations

import click

from archc.cli.table import print_pairs, print_table, print_wrapped
from archc.planning.hardware import Device
from archc.units import gib


def print_devices(found: list[Device]) -> None:
    """A line a device."""
    columns = ("device", "bf16 TFLOP/s", "fp8 TFLOP/s", "fp32 TFLOP/s", "memory", "GB/s", "link GB/s", "W")
    print_table(columns, [_row(device) for device in found])
    click.echo("  dense peaks, links in one direction; archc hardware NAME has the rest and its source")


def _row(device: Device) -> tuple[str, ...]:
    return (
        device.name,
        *(_tera(device, dtype) for dtype in ("bfloat16", "float8_e4m3fn", "float32")),
        gib(device.memory_bytes),
        f"{device.bandwidth_bytes_per_s / 1e9:,.0f}",
        f"{device.link_bytes_per_s / 1e9:,.0f}",
        "-" if device.power_w is None else str(device.power_w),
    )


def _tera(device: Device, dtype: str) -> str:
    peak = device.peak_flops_per_s.get(dtype)
    return "-" if peak is None else f"{peak / 1e12:,.1f}"


def print_device(device: Device) -> None:
    """All that is known of one."""
    click.secho(f"{device.name}: {device.title}", bold=True)
    pairs = [(f"dense {dtype}", f"{peak / 1e12:,.1f} TFLOP/s") for dtype, peak in device.peak_flops_per_s.items()]
    pairs += [
        ("memory", f"{device.memory_bytes:,} B, {gib(device.memory_bytes)} ({device.label or 'no label'})"),
        ("bandwidth", f"{device.bandwidth_bytes_per_s / 1e9:,.1f} GB/s"),
        ("links", f"{device.link_bytes_per_s / 1e9:,.1f} GB/s in one direction, {device.link_devices:,} devices"),
        ("network", f"{device.network_bytes_per_s / 1e9:,.1f} GB/s in one direction"),
        ("power", "not published" if device.power_w is None else f"{device.power_w} W"),
    ]
    print_pairs(pairs, left=2)
    for label, text in (
        ("links", device.link_name),
        ("source", device.source),
        ("url", device.url),
        ("notes", device.notes),
    ):
        if text:
            print_wrapped(f"{label}: {text}")
    if device.aliases:
        click.echo(f"  also called: {', '.join(device.aliases)}")
