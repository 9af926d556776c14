"""What many families read alike: rope in its old and new spellings, tokenizer ids, schedules, dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from archc.checkpoint.config import Config
from archc.spec.patterns import pattern_of

DEFAULT_THETA = 10000.0
_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")


def tokenizer(config: Config) -> dict[str, Any]:
    """The external tokenizer of a configuration: its size, and special ids where they are stated."""
    found: dict[str, Any] = {"kind": "external", "vocab_size": config.take("vocab_size")}
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        # A class default is the id of a larger vocabulary where the file says nothing.
        default = config.defaults.get(name)
        if name in config.data or (isinstance(default, int) and default < (found["vocab_size"] or 0)):
            value = config.take(name)
            # -1 is how some files say that there is none.
            if value is not None and value != -1 and value != []:
                found[name] = value
    return found


def rope(
    config: Config,
    *,
    head_dim: int,
    length: int | None,
    of: str | None = None,
    theta_names: Sequence[str] = ("rope_theta",),
    share_names: Sequence[str] = ("partial_rotary_factor",),
    no_effect: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A rope position from ``rope_parameters`` or the older ``rope_theta`` and ``rope_scaling``.

    ``of`` names the layer type whose parameters are wanted where the file has a mapping a type. ``theta_names`` and
    ``share_names`` are what the older spelling calls the base and the share of channels that turn, class defaults
    included, and ``no_effect`` keys of the parameters that this family never reads, with the reason. ``more`` are further
    keys of the position. Keys of a scaling that is not known are refused by name.
    """
    stated = config.data.get("rope_parameters")
    if isinstance(stated, Mapping) and of is not None and isinstance(stated.get(of), Mapping):
        whole = config.section("rope_parameters")
        assert whole is not None
        parameters = whole.section(of)
    elif isinstance(stated, Mapping):
        parameters = config.section("rope_parameters")
    else:
        if "rope_parameters" in config.data:
            config.ignore("rope_parameters", why="empty")
        parameters = config.section("rope_scaling") or config.assumed("rope_parameters")
    theta = None
    if parameters is not None and "rope_theta" in parameters.data:
        theta = parameters.take("rope_theta")
        config.ignore(*theta_names, why="rope_parameters says it")
    if theta is None:
        theta = config.take(*theta_names, default=DEFAULT_THETA)
    found: dict[str, Any] = {"kind": "rope", "theta": float(theta)}
    share = 1.0
    if parameters is not None and "partial_rotary_factor" in parameters.data:
        share = parameters.take("partial_rotary_factor")
        config.ignore(*share_names, why="rope_parameters says it")
    elif any(name in config.data or name in config.defaults for name in share_names):
        share = config.take(*share_names)
    if share != 1.0:
        found["partial_rotary_factor"] = share
    found |= more
    if parameters is not None:
        for name, why in (no_effect or {}).items():
            parameters.ignore(name, why=why)
        scaling = _scaling(config, parameters, length)
        if scaling is not None:
            found["scaling"] = scaling
        parameters.finish()
    return found


def _scaling(config: Config, parameters: Config, length: int | None) -> dict[str, Any] | None:
    kind = parameters.take("rope_type", "type", default="default")
    match kind:
        case "default":
            # Left over from a class that once had a scaling, or written by one that has none.
            parameters.ignore("factor", "original_max_position_embeddings", why="rope_type default has no scaling")
            return None
        case "linear":
            return {"kind": "linear", "factor": float(parameters.take("factor"))}
        case "llama3":
            return {
                "kind": "llama3",
                "factor": float(parameters.take("factor")),
                "low_freq_factor": float(parameters.take("low_freq_factor")),
                "high_freq_factor": float(parameters.take("high_freq_factor")),
                "original_max_position_embeddings": parameters.take("original_max_position_embeddings"),
            }
        case "dynamic":
            return {
                "kind": "dynamic",
                "factor": float(parameters.take("factor")),
                "original_max_position_embeddings": parameters.take("original_max_position_embeddings", default=length),
            }
        case "yarn":
            return _yarn(parameters, length)
        case "longrope" | "su":
            return _longrope(config, parameters, length)
        case _:
            parameters.refuse(
                "rope_type" if "rope_type" in parameters.data else "type", "is a rope type that is not known"
            )
            return None


def _yarn(parameters: Config, length: int | None) -> dict[str, Any]:
    trained = parameters.take("original_max_position_embeddings", default=length)
    found: dict[str, Any] = {
        "kind": "yarn",
        "factor": float(parameters.take("factor")),
        "original_max_position_embeddings": trained,
    }
    for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        value = float(parameters.take(name, default=default) or default)
        if value != default:
            found[name] = value
    for name in ("mscale", "mscale_all_dim", "attention_factor"):
        if parameters.has(name):
            found[name] = float(parameters.take(name))
        else:
            parameters.ignore(name, why="null")
    if "truncate" in parameters.data and not parameters.take("truncate"):
        found["truncate"] = False
    return found


def _longrope(config: Config, parameters: Config, length: int | None) -> dict[str, Any]:
    name = "original_max_position_embeddings"
    if name in config.data or name in config.defaults:
        # A class that has the key of its own believes it, whatever the scaling says.
        trained = config.take(name)
        parameters.ignore(name, why="the configuration's own counts")
    else:
        trained = parameters.take(name, default=length)
    factor = parameters.take("factor") if parameters.has("factor") else (length or trained) / trained
    parameters.ignore("factor", why="null")
    parameters.ignore("attention_factor", why="null") if not parameters.has("attention_factor") else None
    return {
        "kind": "longrope",
        "factor": float(factor),
        "original_max_position_embeddings": trained,
        "short_factor": [float(value) for value in parameters.take("short_factor")],
        "long_factor": [float(value) for value in parameters.take("long_factor")],
    }


def stack(names: Sequence[str], ffns: Sequence[str] | str, *, block: Any = "pre_norm") -> dict[str, Any]:
    """A stack whose schedules are as short as they can be."""
    return {
        "num_layers": len(names),
        "block": block,
        "mixer": pattern_of(names),
        "ffn": ffns if isinstance(ffns, str) else pattern_of(ffns),
    }


def activation(config: Config, *names: str) -> str:
    """The graph's name of an activation.

    An unknown one is a problem.
    """
    value = config.take(*names)
    known = {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "relu2": "relu2",
    }
    if value not in known:
        config.refuse(next((name for name in names if name in config.data), names[0]), "is no activation that is known")
        return "silu"
    return known[value]


def stated_types(config: Config, layers: int, *known: str, key: str = "layer_types") -> list[str] | None:
    """The list of a type a layer, where there is one.

    Another length than the layers', and types that the family has not, are problems.
    """
    types = config.take(key)
    if types is None:
        return None
    strange = sorted(set(types) - set(known))
    if strange or len(types) != layers:
        config.refuse(key, f"should be {layers} of {' and '.join(known)}, one a layer")
    return [kind if kind in known else known[0] for kind in types]


def silu_only(config: Config, name: str = "hidden_act") -> None:
    """Refuse another activation, where that of experts and short convolutions would follow it."""
    if activation(config, name) != "silu":
        config.refuse(name, "is not silu; it would be that of experts or short convolutions, which have no other")


def without_defaults(mapping: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """The mapping without the entries that say what is so anyway."""
    return {key: value for key, value in mapping.items() if key not in defaults or defaults[key] != value}


def by_layer(count: int, name: Callable[[int], str]) -> list[str]:
    """A name for every layer, counted from 0."""
    return [name(layer) for layer in range(count)]
