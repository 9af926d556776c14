"""The tokenizer beside a model: the file that a spec names, the one that its kind makes, or one that a user hands over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from archc.errors import ArchcError
from archc.families import TOKENIZER_ROLES, Tokenizer
from archc.generation.text import open_tokenizer
from archc.spec.nodes import Mark
from archc.spec.resolved import Resolved

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
SOURCE_TOKENIZER = "source_tokenizer.json"
"""That of an encoder that has one of its own; its decoder's is the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """What is written beside the model: file name -> contents, and role (``bos``, ``eos``, …) -> ids of special tokens."""

    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    special_token_ids: Mapping[str, list[int]] = field(default_factory=dict[str, list[int]])
    places: Mapping[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])
    """Where the spec says which file is read -> the file's name in the folder."""
    has_own_source: bool = False
    """Whether an encoder's ids are not those of its decoder, so that prompts are read by another tokenizer, if by any."""
    note: str = ""
    """Why there is no tokenizer although the spec has one; empty where there is, or where the spec has none."""


def tokenizer_files(spec: Resolved, given: Path | None = None) -> TokenizerFiles:
    """The tokenizer of a spec, or ``given``: a tokenizer.json, or a folder with one and perhaps a tokenizer_config.json.

    Raises:
        ArchcError: a file can't be read, is no tokenizer, or has more ids than the spec.
        MissingExtraError: ``given`` is stated and ``tokenizers`` is not installed.
    """
    where, source_where = _stated(spec, "main"), _stated(spec, "source")
    kind, source = _kind(spec, where), _kind(spec, source_where)
    own = source_where != where
    found = replace(_given(kind, given), places={where: TOKENIZER}) if given is not None else _made(spec, kind, where)
    if not own:
        return found
    read = _made(spec, source, source_where)
    files = {**found.files, **({SOURCE_TOKENIZER: read.files[TOKENIZER]} if read.files else {})}
    places = {**found.places, **({source_where: SOURCE_TOKENIZER} if read.files else {})}
    return replace(found, files=files, places=places, has_own_source=True)


def _made(spec: Resolved, kind: Tokenizer, where: tuple[str, ...]) -> TokenizerFiles:
    """What the spec's own file or its kind gives."""
    roles = _stated_roles(kind)
    if not kind.has_file():
        return TokenizerFiles(special_token_ids=roles)
    if find_spec("tokenizers") is None:
        note = f"{TOKENIZER} is not written: that needs the extra 'tokenizers'"
        return TokenizerFiles(special_token_ids=roles, note=note)
    made = kind.load(_folder(spec, where))
    files = {TOKENIZER: made.to_str(pretty=False).encode()}
    return TokenizerFiles(files=files, special_token_ids=roles, places={where: TOKENIZER})


def _stated(spec: Resolved, whose: str) -> tuple[str, ...]:
    """Where the tokenizer stands that rules the stack which the head reads, or the one which prompts go to."""
    stacks = spec.spec.stacks()
    section = (
        next(name for name, stack in stacks.items() if stack is spec.spec.main)
        if whose == "main"
        else next(iter(stacks))
    )
    return ("tokenizer",) if stacks[section].tokenizer is None else (section, "tokenizer")


def _kind(spec: Resolved, where: tuple[str, ...]) -> Tokenizer:
    kind = spec.spec.tokenizer if len(where) == 1 else spec.spec.stacks()[where[0]].tokenizer
    assert isinstance(kind, Tokenizer)
    return kind


def _given(kind: Tokenizer, given: Path) -> TokenizerFiles:
    path = given / TOKENIZER if given.is_dir() else given
    made = open_tokenizer(path)
    last = max(made.get_vocab(with_added_tokens=True).values(), default=-1)
    if last >= kind.ids():
        raise ArchcError(f"{path}: has the id {last}, and the spec says that there are {kind.ids()} ids")
    files, roles = {TOKENIZER: path.read_bytes()}, _stated_roles(kind)
    config = path.with_name(CONFIG)
    if config.is_file():
        try:
            files[CONFIG] = config.read_bytes()
            named: Any = json.loads(files[CONFIG])
        except (OSError, ValueError) as error:
            raise ArchcError(f"{config}: can't be read: {error}") from error
        # What the spec states holds; the file speaks where the spec is silent.
        roles = {**_named_roles(named if isinstance(named, dict) else {}, made), **roles}
    return TokenizerFiles(files=files, special_token_ids=roles)


def _stated_roles(kind: Tokenizer) -> dict[str, list[int]]:
    return {role: ids for role in TOKENIZER_ROLES if (ids := kind.role_ids(role))}


def _named_roles(config: Mapping[str, Any], made: Any) -> dict[str, list[int]]:
    """Ids of the special tokens that a tokenizer_config.json names, each a text or a mapping with ``content``."""
    found: dict[str, list[int]] = {}
    for role in TOKENIZER_ROLES:
        token = config.get(f"{role}_token")
        text = token.get("content") if isinstance(token, dict) else token
        number = made.token_to_id(text) if isinstance(text, str) else None
        if number is not None:
            found[role] = [number]
    return found


def _folder(spec: Resolved, where: tuple[str, ...]) -> Path:
    """The folder that the tokenizer's ``file`` is relative to: that of the spec which states it, or the current one."""
    origin = spec.origins.get((*where, "file"))
    return Path(origin.file).parent if isinstance(origin, Mark) and origin.line else Path()
