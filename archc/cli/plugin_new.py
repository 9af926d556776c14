"""``archc plugins new``: a package with one kind, its test and its metadata, written whole or not at all."""

from __future__ import annotations

import keyword
import os
import re
import secrets
import shutil
from importlib.util import find_spec
from pathlib import Path
from string import Template

from archc import registry
from archc.cli.plugin_templates import FILES, KINDS
from archc.errors import ArchcError, PluginError

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
MAX_NAME = 40


def write_package(name: str, family: str, out: Path | None) -> Path:
    """The folder of a new package that offers ``family.name``; by default ``archc-NAME`` in the folder one is in.

    Raises:
        PluginError: the name can't be one, or is taken, or there is nothing to start a kind of this family from.
        ArchcError: the folder exists.
    """
    if family not in KINDS:
        raise PluginError(f"there is nothing to start a {family!r} from; families: {', '.join(KINDS)}")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > MAX_NAME:
        raise PluginError(
            f"a kind is named in lower case, as in my_mixer, at most {MAX_NAME} characters (found {name[:60]!r})"
        )
    if (taken := registry.provider(family, name)) is not None:
        raise PluginError(f"{family} {name!r} is offered by {' '.join(taken)} already")
    package, module = f"archc-{name.replace('_', '-')}", f"archc_{name}"
    if find_spec(module) is not None:
        raise PluginError(f"a package named {module} is installed already; choose another name")
    folder = Path(package) if out is None else out
    if os.path.lexists(folder):
        raise ArchcError(f"{folder} exists already; nothing was written")
    kind = KINDS[family]
    words = {
        "name": name,
        "family": family,
        "package": package,
        "module": module,
        "cls": "".join(part.title() for part in name.split("_")),
        "keys": kind.keys,
        "yaml": kind.yaml.replace("NAME", name),
    }
    words["kind"] = Template(kind.source).substitute(words)
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        for path, text in FILES.items():
            file = stage / Template(path).substitute(words)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Template(text).substitute(words), encoding="utf-8")
        # A folder is renamed onto nothing, or onto an empty one; what holds files makes this fail.
        os.rename(stage, folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return folder
