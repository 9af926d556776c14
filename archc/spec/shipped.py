"""The specs that come with archc."""

from __future__ import annotations

from pathlib import Path


def shipped_specs() -> dict[str, Path]:
    """Name -> file of every spec that is shipped, sorted by name."""
    root = Path(__file__).resolve().parents[2]
    folder = root / "archc_specs"
    # In a checkout the data lies beside the package under its repository name.
    if not folder.is_dir() and (root / "pyproject.toml").is_file():
        folder = root / "specs"
    return dict(
        sorted((path.stem if path.suffix in (".yaml", ".yml") else path.name, path) for path in folder.rglob("*.yaml"))
    )
