"""``archc hardware``."""

from __future__ import annotations

import click

from archc.cli.options import Command, json_option, print_json


@click.command("hardware", cls=Command)
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--hardware", "file", metavar="FILE", help="Devices of your own instead of the catalogue, checked.")
@json_option
def command(name: str | None, file: str | None, as_json: bool) -> None:
    """The devices that estimates know, or one of them: dense peaks, memory, links, power, and where the figures are from.

    NAME is one in any spelling, as in h100, "RTX 4090" or a100-40gb.
    """
    from archc.planning.hardware import devices, find_device

    found = devices(file) if name is None else {(device := find_device(name, file)).name: device}
    if as_json:
        print_json({name: device.to_json() for name, device in found.items()})
        return
    from archc.cli.hardware_text import print_device, print_devices

    if name is None:
        print_devices(list(found.values()))
    else:
        print_device(next(iter(found.values())))
