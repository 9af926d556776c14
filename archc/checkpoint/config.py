"""A ``config.json`` that is accounted for: what was used, what has no effect, what is a default, what can't be honoured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from archc.errors import ArchcError

Verdict = Literal["used", "default", "no effect", "refused"]

_MISSING = object()

NO_EFFECT: dict[str, str] = {
    "architectures": "names the class; the family is read from model_type",
    "model_type": "names the family",
    "transformers_version": "says who wrote the file",
    "_name_or_path": "says where the file was",
    "use_cache": "whether a cache is kept is the caller's choice",
    "initializer_range": "of weights that are not loaded",
    "pretraining_tp": "how it was trained",
    "attention_dropout": "training only",
    "hidden_dropout": "training only",
    "resid_pdrop": "training only",
    "embd_pdrop": "training only",
    "attn_pdrop": "training only",
    "dropout": "training only",
    "output_router_logits": "training only",
    "router_aux_loss_coef": "training only",
    "router_jitter_noise": "training only",
    "auto_map": "names code; code of a checkpoint is never run",
    "_attn_implementation": "how transformers computes, not what",
    "_experts_implementation": "how transformers computes, not what",
    "attn_implementation": "how transformers computes, not what",
    "torch_dtype": "used as dtype",
    "return_dict": "of the interface",
    "output_attentions": "of the interface",
    "output_hidden_states": "of the interface",
    "chunk_size_feed_forward": "how it is computed, not what",
    "is_encoder_decoder": "false for decoders",
    "problem_type": "of classification heads",
    "id2label": "of classification heads",
    "label2id": "of classification heads",
    "is_llama_config": "says what model_type says",
    "transformers.js_config": "of another program",
    "quantization_config": "of the stored tensors, not of the architecture",
}
"""Keys of every family that change no number of a forward pass, with the reason."""


@dataclass(frozen=True, slots=True)
class Account:
    """What became of one key."""

    key: str
    value: Any
    verdict: Verdict
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The same by name."""
        return {"key": self.key, "value": self.value, "verdict": self.verdict, "note": self.note}


class ConfigError(ArchcError):
    """A configuration that can't be honoured, and what became of its keys."""

    def __init__(self, message: str, family: str, accounts: tuple[Account, ...]) -> None:
        super().__init__(message)
        self.family = family
        self.accounts = accounts


@dataclass
class Config:
    """The keys of a configuration, or of a mapping inside one under ``path``; each is taken, ignored or refused once.

    ``defaults`` are those of the family's class in transformers, for keys that the file leaves out.
    """

    data: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    path: str = ""
    is_model: bool = True
    """Whether keys that have no effect in any family may stand here: at the top, and in the part of a nested text model."""
    accounts: dict[str, Account] = field(default_factory=dict[str, Account])
    problems: list[str] = field(default_factory=list[str])
    _settled: set[str] = field(default_factory=set[str])

    def has(self, name: str) -> bool:
        """Whether the file says it, other than as null."""
        return self.data.get(name) is not None

    def take(self, *names: str, default: Any = _MISSING) -> Any:
        """The value under the first of the names that the file has; else the class default, else ``default``.

        A key that nobody states is a problem, and comes back as None.
        """
        for name in names:
            if name in self.data:
                self._note(name, self.data[name], "used")
                for other in names:
                    if other != name and other in self.data:
                        self._note(other, self.data[other], "no effect", f"{name} says it")
                return _plain(self.data[name])
        for name in names:
            if name in self.defaults:
                self._note(name, self.defaults[name], "default", "of transformers' class")
                return self.defaults[name]
        if default is not _MISSING:
            self._note(names[0], default, "default", "where the file says nothing")
            return default
        self.problems.append(f"{self._full(names[0])} is missing")
        return None

    def expect(self, name: str, *legal: Any, why: str) -> None:
        """Refuse a key that asks for something else than ``legal``; the first is what its absence means."""
        value = self.data.get(name, self.defaults.get(name, legal[0]))
        if value in legal:
            if name in self.data:
                self._note(name, value, "used")
            return
        self.refuse(name, why)

    def ignore(self, *names: str, why: str) -> None:
        """Keys that have no effect in this family, with the reason."""
        for name in names:
            if name in self.data:
                self._note(name, self.data[name], "no effect", why)

    def refuse(self, name: str, why: str) -> None:
        """A key that asks for what can't be honoured."""
        value = self.data.get(name, self.defaults.get(name))
        self._note(name, value, "refused", why)
        self.problems.append(f"{self._full(name)}: {value!r} {why}")

    def state(self, name: str, value: Any, *, why: str) -> None:
        """A value that is said elsewhere and counts here: the file's own has no effect, nor has the class default."""
        if name in self.data:
            self._note(name, self.data[name], "no effect", why)
        self.data = {**self.data, name: value}
        self._settled.add(name)

    def section(self, name: str, *, defaults: Mapping[str, Any] | None = None) -> Config | None:
        """A mapping inside; None where the file has none. Its keys are accounted for with this one's.

        With ``defaults`` it is a model of its own, and they are those of its class.
        """
        value = self.data.get(name)
        if not isinstance(value, Mapping):
            if value is not None:
                self.refuse(name, "is no mapping")
            elif name in self.data:
                self._note(name, None, "used")
            return None
        self._note(name, "{…}", "used")
        inner = Config(
            value, defaults or {}, path=self._full(name), is_model=defaults is not None, problems=self.problems
        )
        inner.accounts = self.accounts
        return inner

    def assumed(self, name: str) -> Config | None:
        """The mapping that the class assumes where the file has none, as a section; None where it assumes none."""
        value = self.defaults.get(name)
        if not isinstance(value, Mapping):
            return None
        self._note(name, "{…}", "default", "of transformers' class")
        inner = Config(value, path=self._full(name), is_model=False, problems=self.problems)
        inner.accounts = self.accounts
        return inner

    def finish(self) -> None:
        """Every key that nobody took: known to have no effect, or a problem."""
        for name in self.data:
            if self._full(name) in self.accounts or name in self._settled:
                continue
            if name in NO_EFFECT and self.is_model:
                self._note(name, self.data[name], "no effect", NO_EFFECT[name])
            else:
                self.refuse(name, "is not known to this family; what it asks for can't be honoured")

    def _full(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def _note(self, name: str, value: Any, verdict: Verdict, note: str = "") -> None:
        if name in self._settled:
            # It was accounted for where it is said.
            return
        full = self._full(name)
        self.accounts[full] = Account(full, value, verdict, note)


def _plain(value: Any) -> Any:
    """The value, with what transformers writes for numbers that JSON lacks."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) and set(value) == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity"):
        return float(value["__float__"])
    return value
