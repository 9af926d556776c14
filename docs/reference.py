"""Writes what is generated of the language: the JSON Schema beside the specs, and the tables of docs/language.md.

python docs/reference.py
"""

from __future__ import annotations

import json
from pathlib import Path

from archc.spec.json_schema import json_schema
from archc.spec.manual import manual

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "specs" / "archc-spec.schema.json"
LANGUAGE = ROOT / "docs" / "language.md"
BEGIN, END = "<!-- Written by make schema. -->\n", "<!-- End of what make schema writes. -->\n"


def schema_text() -> str:
    """The schema file, as ``archc schema -o`` writes it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def language_text(page: str) -> str:
    """The page with its tables of keys replaced by those of the installed kinds."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{LANGUAGE.name} lacks {BEGIN}"
    assert end, f"{LANGUAGE.name} lacks {END}"
    return f"{before}{begin}\n{manual()}\n{end}{after}"


def main() -> None:
    """Write both files."""
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    LANGUAGE.write_text(language_text(LANGUAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
