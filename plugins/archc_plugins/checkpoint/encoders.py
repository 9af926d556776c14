"""What encoders have in common: the class says which head there is, and layers of BERT's kind have BERT's names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from typing import cast as typed

from archc.checkpoint.common import activation, without_defaults
from archc.checkpoint.config import Config
from archc.checkpoint.rules import Dropped, Rule, both, rule

MASKED, POOLED, PLAIN = "masked", "pooled", "plain"
"""A head that predicts tokens, hidden states with a vector of the first, hidden states alone."""
TEXT_CLASS, TOKEN_CLASS, SPAN = "text class", "token class", "span"
"""Labels of a text, of each token, and scores for where an answer begins and ends."""
LABELLED = (TEXT_CLASS, TOKEN_CLASS, SPAN)


def form(config: Config, forms: Mapping[str, str]) -> str:
    """Which head a class of ``architectures`` has, by the ends of their names; the first where the file names none."""
    named = config.take("architectures", default=None)
    found = form_of(config.data, forms)
    if found is None:
        config.refuse("architectures", f"has a head that is not known; known: {', '.join(forms)}")
        return next(iter(forms.values()))
    if named is None:
        config.ignore("architectures", why=f"null; read as {next(iter(forms))}")
    return found


def form_of(data: Mapping[str, Any], forms: Mapping[str, str]) -> str | None:
    """The same of a configuration that was accounted for; None for a class that is not known."""
    named = data.get("architectures")
    if not isinstance(named, list) or not named:
        return next(iter(forms.values()))
    return forms.get(str(typed("list[object]", named)[0]))


def labels(config: Config, found: str) -> int:
    """How many labels there are: the names of ``id2label``, two where the file has none; where an answer is, always two."""
    if found == SPAN:
        config.ignore("num_labels", why="an answer has a begin and an end")
        return 2
    names = config.data.get("id2label")
    if isinstance(names, Mapping) and names:
        config.take("id2label")
        config.ignore("num_labels", why="id2label says it")
        return len(typed("Mapping[str, str]", names))
    return int(config.take("num_labels", default=2))


def no_labels(config: Config) -> None:
    """Keys of labels where no head has any."""
    config.ignore("num_labels", why="of classification heads")


def pooled_class(config: Config, found: str, *, act: str, **dense: Any) -> dict[str, Any]:
    """A classifier: of a text behind a dense layer, of tokens without one."""
    head = {"kind": "classifier", "num_labels": labels(config, found)}
    return head | ({"activation": act, **dense} if found == TEXT_CLASS else {"pool": "none"})


def section(config: Config) -> str:
    """``encoder``, or ``stack`` where the same layers see what came before only."""
    config.expect("add_cross_attention", False, why="asks for attention to another encoder")
    config.expect("is_decoder", False, True, why="is neither true nor false")
    return "stack" if config.data.get("is_decoder") else "encoder"


def attention(config: Config, **more: Any) -> dict[str, Any]:
    """Multi-head attention with biases everywhere."""
    heads = config.take("num_attention_heads")
    shape = {"num_heads": heads, "num_kv_heads": heads, "head_dim": config.take("hidden_size") // heads}
    return {"kind": "gqa", **shape, "qkv_bias": True, "o_bias": True, **without_defaults(more, rotary_value=False)}


def mlp(config: Config) -> dict[str, Any]:
    """Two matrices with biases."""
    width, act = config.take("intermediate_size"), activation(config, "hidden_act")
    return {"kind": "mlp", "intermediate_size": width, "activation": act, "bias": True}


def ignore_training(config: Config) -> None:
    """Keys that change no number of a forward pass in BERT's relatives."""
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    config.ignore(*dropouts, "gradient_checkpointing", why="training only")
    config.ignore("bos_token_id", "eos_token_id", why="null") if not config.has("bos_token_id") else None


def bert_layer(layer: str) -> tuple[Rule, ...]:
    """A layer under BERT's names; ``layer`` has ``{i}``."""
    ours = "layers.{i}"
    return (
        *(
            entry
            for theirs, name in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
            for entry in both(f"{layer}.attention.self.{theirs}", f"{ours}.mixer.{name}")
        ),
        *both(f"{layer}.attention.output.dense", f"{ours}.mixer.o_proj"),
        *both(f"{layer}.attention.output.LayerNorm", f"{ours}.mixer_norm"),
        *both(f"{layer}.intermediate.dense", f"{ours}.ffn.up_proj"),
        *both(f"{layer}.output.dense", f"{ours}.ffn.down_proj"),
        *both(f"{layer}.output.LayerNorm", f"{ours}.ffn_norm"),
    )


def bert_predictions(head: str, *, tied: bool) -> tuple[Rule, ...]:
    """A head that predicts tokens under BERT's names; its bias has two, of which ``tied`` says which."""
    return (
        *both(f"{head}.transform.dense", "head_dense"),
        *both(f"{head}.transform.LayerNorm", "head_norm"),
        rule(f"{head}.decoder.weight", "lm_head.weight"),
        rule(f"{head}.bias" if tied else f"{head}.decoder.bias", "lm_head.bias"),
    )


OWN_BIAS = "the bias of the head under its own name"


def own_bias(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The same with the bias of the head where files have it that hold it once: a decoder's wins where there are two."""
    names = {f"{head}.decoder.bias": f"{head}.bias" for head in ("cls.predictions", "lm_head")}
    return tuple(Rule(names.get(entry.theirs, entry.theirs), entry.ours, entry.layout, entry.rows) for entry in rules)


def bias_again(head: str) -> Dropped:
    """The bias that the rules don't read, of two."""
    return Dropped(rf"{re.escape(head)}\.(decoder\.)?bias", "the other name of the bias that is read", kept=True)


def old_names(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The same with the norms' weights called gamma and beta, as files from before PyTorch have them."""
    renames = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    found: list[Rule] = []
    for entry in rules:
        theirs = entry.theirs
        for new, old in renames.items():
            theirs = theirs.replace(new, old)
        found.append(Rule(theirs, entry.ours, entry.layout, entry.rows))
    return tuple(found)
