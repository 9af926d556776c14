"""What becomes of the keys of a configuration, and of the schedules that it lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archc.checkpoint.config import Config, ConfigError
from archc.checkpoint.importing import import_data
from archc.spec.patterns import expand, parse, pattern_of, runs, written

LLAMA = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def verdicts(config: Config) -> dict[str, str]:
    return {key: account.verdict for key, account in config.accounts.items()}


def test_a_key_is_used_a_default_without_effect_or_refused():
    config = Config({"a": 1, "use_cache": True, "c": 3, "d": 4}, {"b": 2})
    assert config.take("a") == 1
    assert config.take("b") == 2
    assert config.take("e", default=5) == 5
    config.ignore("c", "absent", why="said elsewhere")
    config.refuse("d", "is too much")
    config.finish()
    assert verdicts(config) == {
        "a": "used",
        "b": "default",
        "e": "default",
        "c": "no effect",
        "d": "refused",
        "use_cache": "no effect",
    }
    assert config.problems == ["d: 4 is too much"]


def test_a_key_that_nobody_takes_and_one_that_nobody_states_are_problems():
    config = Config({"strange": None})
    assert config.take("needed") is None
    config.finish()
    assert [problem.split()[0] for problem in config.problems] == ["needed", "strange:"]


def test_the_first_of_several_spellings_counts_and_the_others_are_noted():
    config = Config({"n_embd": 8, "hidden_size": 16})
    assert config.take("hidden_size", "n_embd") == 16
    config.finish()
    assert verdicts(config) == {"hidden_size": "used", "n_embd": "no effect"}
    assert config.problems == []


def test_numbers_that_json_lacks_are_read_as_transformers_writes_them():
    config = Config({"limit": [0.0, {"__float__": "Infinity"}], "low": {"__float__": "-Infinity"}})
    assert config.take("limit") == [0.0, float("inf")]
    assert config.take("low") == -float("inf")


def test_keys_of_a_mapping_inside_are_accounted_for_under_their_path():
    config = Config({"rope": {"theta": 1.0, "use_cache": True}})
    inner = config.section("rope")
    assert inner is not None
    inner.take("theta")
    inner.finish()
    config.finish()
    assert verdicts(config) == {"rope": "used", "rope.theta": "used", "rope.use_cache": "refused"}


def test_what_the_whole_model_says_counts_for_the_text_model_inside():
    config = Config({"text_config": {"tie_word_embeddings": True, "use_cache": True}})
    inner = config.section("text_config", defaults={"tie_word_embeddings": True})
    assert inner is not None
    inner.state("tie_word_embeddings", False, why="said above")
    assert inner.take("tie_word_embeddings") is False
    inner.finish()
    assert config.problems == []
    assert verdicts(config)["text_config.tie_word_embeddings"] == "no effect"


def test_every_problem_is_named_at_once_and_every_key_accounted_for():
    with pytest.raises(ConfigError) as caught:
        import_data({**LLAMA, "rope_scaling": {"type": "spiral"}, "hidden_act": "sine", "new_idea": 1}, name="x")
    message = str(caught.value)
    assert "3 keys of llama can't be honoured" in message
    for words in ("'spiral' is a rope type", "hidden_act: 'sine'", "new_idea: 1 is not known to this family"):
        assert words in message
    refused = [account.key for account in caught.value.accounts if account.verdict == "refused"]
    assert sorted(refused) == ["hidden_act", "new_idea", "rope_scaling.type"]


def test_a_default_of_the_class_is_used_and_said():
    imported = import_data(LLAMA, name="x")
    found = {account.key: account for account in imported.accounts}
    assert (found["rms_norm_eps"].verdict, found["rms_norm_eps"].value) == ("default", 1e-6)
    assert "eps: 1.0e-06" in imported.text
    changed = import_data({**LLAMA, "rms_norm_eps": 0.5}, name="x")
    assert "eps: 0.5" in changed.text


_HALF_LAYERS = "(m f)*3 m (a (f m)*5)* f"


def names() -> st.SearchStrategy[list[str]]:
    """Lists as schedules are: few names, stretches that repeat, a head or a tail of their own."""
    name = st.sampled_from(["full", "sliding", "kda", "a"])
    unit = st.lists(name, min_size=1, max_size=6)
    repeated = st.tuples(unit, st.integers(1, 8)).map(lambda pair: pair[0] * pair[1])
    return st.lists(repeated, min_size=1, max_size=3).map(lambda parts: [name for part in parts for name in part])


@settings(max_examples=400, deadline=None)
@given(names())
def test_the_shortest_pattern_says_the_same_layers_and_no_more_words_than_needed(layers: list[str]):
    pattern = pattern_of(layers)
    assert expand(parse(pattern), len(layers)) == tuple(layers)
    assert len(pattern) <= len(written(runs(layers)))


@pytest.mark.parametrize(
    ("layers", "pattern"),
    [
        (["attn"] * 32, "attn"),
        (["kda", "kda", "kda", "mla"] * 5, "(kda*3 mla)*"),
        (["kda", "kda", "kda", "mla"] * 6 + ["kda", "kda", "mla"], "(kda*3 mla)* kda*2 mla"),
        (["dense"] * 3 + ["moe"] * 58, "dense*3 moe*"),
        ((["sliding"] * 5 + ["full"]) * 5 + ["sliding"] * 4, "(sliding*5 full)* sliding*4"),
        (["a", "b"], "a b"),
        (["m", "f"] * 3 + ["m", "a", "f"] + (["m", "f"] * 4 + ["m", "a", "f"]) * 3 + ["m", "f"] * 5, _HALF_LAYERS),
        (["mamba", "mlp"] * 3 + ["attn", "mlp"], "(mamba mlp)* attn mlp"),
    ],
)
def test_schedules_of_published_models_are_short(layers: list[str], pattern: str):
    assert pattern_of(layers) == pattern


def test_a_pattern_of_many_layers_is_found_in_time():
    layers = (["a"] * 7 + ["b"]) * 120 + ["a"] * 3
    assert expand(parse(pattern_of(layers)), len(layers)) == tuple(layers)
