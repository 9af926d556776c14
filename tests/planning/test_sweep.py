"""Sums of layers are what the estimate of each variant gives, column by column, and the sweep says what is wrong."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import archc
from archc.errors import ArchcError, SpecError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.planning.search.sweep import VariantError, open_sweep, sweep
from archc.planning.search.sweep_costs import Sizes, slow_totals
from archc.planning.search.sweep_engine import Engine
from archc.planning.search.sweep_parts import Key
from archc.planning.search.sweep_values import keys_of, parse_range
from archc.spec.load import load_spec, read_tree
from archc.spec.nodes import Mark, Node, dotted, is_mapping
from archc.spec.shipped import shipped_specs

KIMI = "kimi-linear-48b-a3b"
PATTERNS = ["(kda*3 mla)* kda*2 mla", "(kda*7 mla)* kda*2 mla", "(kda mla)* kda*2 mla", "kda* mla"]


def engine_of(spec: str | Path, vary: dict[str, list[Any]]) -> Engine:
    tree, file = read_tree(str(spec))
    return Engine(tree, file, keys_of(vary, tree, file), Sizes(2, (96, 4096)))


def judge(engine: Engine, choice: tuple[int, ...]) -> Any:
    """What the slow way gives: the variant loaded, expanded and estimated on its own, or its error."""
    try:
        return slow_totals(expand(engine.load(choice).spec), engine.sizes)
    except ArchcError as error:
        return str(error)


def summed(engine: Engine, choice: tuple[int, ...]) -> Any:
    try:
        return engine.totals(choice)
    except ArchcError as error:
        return str(error)


def assert_alike(engine: Engine) -> None:
    choices = list(itertools.product(*(range(key.number) for key in engine.keys)))
    random.Random(7).shuffle(choices)
    for choice in choices:
        assert summed(engine, choice) == judge(engine, choice), (choice, [key.name for key in engine.keys])
    # And once more, now that everything is known.
    before = engine.num_slow
    valid = [choice for choice in choices if not isinstance(summed(engine, choice), str)]
    assert valid
    assert engine.num_slow == before
    assert engine.trusts_all


def test_the_columns_are_what_estimate_gives():
    found = sweep(
        KIMI, {"mixers.kda.num_heads": [16, 32], "stack.mixer": PATTERNS[:2]}, at=(4096, 131072), batch_size=3
    )
    assert found.num_invalid == 0
    for record in found.records():
        overrides = [
            f"mixers.kda.num_heads={record['mixers.kda.num_heads']}",
            f'stack.mixer="{record["stack.mixer"]}"',
        ]
        spec = load_spec(KIMI, overrides)
        for length in (4096, 131072):
            one = estimate(spec, batch_size=3, max_model_len=length)
            assert record["parameters"] == one.parameters.total
            assert record["active_parameters"] == one.parameters.active
            assert record["embedding_parameters"] == one.parameters.embedding
            assert record["weight_bytes"] == one.weights.bytes
            assert record["cache_bytes_per_token"] == one.cache.bytes_per_token
            assert record["state_bytes_per_sequence"] == sum(
                kind.recurrent_bytes_per_sequence + kind.convolution_bytes_per_sequence for kind in one.cache.by_kind
            )
            assert record[f"cache_bytes_at_{length}"] == one.cache.used_bytes
            assert record[f"prefill_flops_per_token_at_{length}"] * 3 * length == one.flops.numbers["prefill"]
            assert record[f"decode_flops_per_token_at_{length}"] * 3 == one.flops.numbers["decode"]
            assert record[f"train_flops_per_token_at_{length}"] * 3 * length == one.flops.numbers["train_step"]


def test_the_released_hybrid_is_a_row_of_its_own_sweep():
    found = sweep(KIMI, {"stack.mixer": [PATTERNS[0]]}).records()[0]
    assert found["parameters"] == 49_122_675_072 == estimate(load_spec(KIMI)).parameters.total
    assert found["cache_bytes_per_token"] == 8064


GRIDS: dict[str, dict[str, list[Any]]] = {
    "bodies and patterns": {
        "mixers.kda.num_heads": [16, 32],
        "mixers.mla.kv_lora_rank": [256, 512],
        "stack.mixer": PATTERNS[:3],
        "stack.num_layers": [19, 27],
    },
    "what all layers stand in": {
        "embedding.hidden_size": [1024, 2304],
        "norm.eps": [1e-5, 1e-6],
        "dtype": ["bfloat16", "float32", "int4"],
        "embedding.tie_word_embeddings": [True, False],
        "cache.state_dtype": ["float32", "bfloat16"],
    },
    "blocks with streams": {
        "stack.block": [
            "pre_norm",
            "post_norm",
            {"kind": "attention_residual", "block_size": 4},
            {"kind": "attention_residual", "block_size": 3},
        ],
        "stack.num_layers": [11, 19],
        "mixers.kda.num_heads": [16, 32],
    },
    "kinds": {
        "mixers.kda": [
            {"kind": "kda", "num_heads": 8, "head_dim": 64, "conv_kernel": 4},
            {"kind": "gqa", "num_heads": 8, "num_kv_heads": 2, "head_dim": 64},
            {"kind": "gqa", "num_heads": 8, "num_kv_heads": 3, "head_dim": 64},
        ],
        "ffns.moe.num_experts": [16, 32],
        "cache.policy": ["full", "nothing of the kind"],
    },
}


@pytest.mark.parametrize("vary", GRIDS.values(), ids=GRIDS)
def test_a_sum_of_layers_is_the_estimate(vary: dict[str, list[Any]]):
    assert_alike(engine_of(KIMI, vary))


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], int]]:
    if is_mapping(value):
        return [found for key, item in value.items() for found in leaves(item, (*path, key))]
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return [(path, value)] if is_count and path != ("spec_version",) else []


@pytest.mark.parametrize("name", sorted(shipped_specs()))
def test_every_shipped_spec_is_summed_as_it_is_estimated(name: str):
    """Patterns and depth, and one number of a mixer or ffn: what was learned of some variants gives the others."""
    tree, file = read_tree(name)
    found = leaves(tree.plain())
    depths = [path for path, _ in found if path[-1] == "num_layers" and path[0] != "mtp"]
    inner = [(path, value) for path, value in found if path[0] in ("mixers", "ffns")]
    path, value = random.Random(name).choice(inner)
    numbers: dict[tuple[str, ...], list[int]] = {path: [value, value * 2]}
    for depth in depths:
        count = dict(found)[depth]
        numbers[depth] = [count, count + 1, count * 2]
    keys = [
        Key(dotted(path), len(values), [Node(each, Mark("test")) for each in values].__getitem__)
        for path, values in numbers.items()
    ]
    assert_alike(Engine(tree, file, keys, Sizes(1, (100,))))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_numbers_of_any_spec_give_the_estimate_or_its_error(data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(shipped_specs())))
    tree, file = read_tree(name)
    chosen = data.draw(
        st.lists(st.sampled_from(leaves(tree.plain())), min_size=1, max_size=3, unique_by=lambda leaf: leaf[0])
    )
    keys: list[Key] = []
    for path, value in chosen:
        values = [value, data.draw(st.integers(1, max(2, value * 2)))]
        if path[-1] == "num_layers":
            values = [value, data.draw(st.integers(1, 40))]
        keys.append(Key(dotted(path), 2, [Node(each, Mark("test")) for each in values].__getitem__))
    engine = Engine(tree, file, keys, Sizes(1, (64, 9000)))
    for choice in itertools.product(range(2), repeat=len(keys)):
        assert summed(engine, choice) == judge(engine, choice)
    assert engine.trusts_all


def test_siblings_that_extend_a_varied_one_follow_it(tmp_path: Path):
    text = (Path(shipped_specs()[KIMI]).read_text()).replace("ffns:", "  wide: {extends: kda, head_dim: 256}\nffns:", 1)
    path = tmp_path / "wide.yaml"
    path.write_text(text.replace("mixer: (kda*3 mla)* kda*2 mla", "mixer: (kda*2 wide mla)* kda*2 mla"))
    assert_alike(engine_of(path, {"mixers.kda.num_heads": [8, 16], "mixers.kda.conv_kernel": [3, 4]}))
    assert_alike(engine_of(path, {"mixers.kda.num_heads": [8, 16], "mixers.wide.extends": ["kda"]}))


def test_layers_that_read_an_earlier_one_follow_what_it_keeps():
    vary = {
        "mixers.global.num_kv_heads": [1, 2],
        "mixers.global.cache": [None, {"policy": "full", "dtype": "float32"}],
        "stack.mixer": ["local*11 global reuse*", "local*11 global reuse*3 local*", "local*3 global*2 reuse* local*2"],
        "stack.num_layers": [16, 20],
    }
    assert_alike(engine_of("demo-yoco", vary))


def test_growth_that_is_rounded_once_for_all_layers_is_no_multiple_of_a_layers():
    # A row for three tokens: 1024 bytes over 3, for so many layers at once.
    engine = engine_of("deepseek-v4-flash", {"mixers.csa.compress_ratio": [3, 4, 5], "stack.num_layers": [41, 43]})
    assert_alike(engine)
    one, more = (engine.totals((0, depth)).row for depth in (0, 1))
    assert (one[4], more[4]) == tuple(estimate(engine.load((0, depth)).spec).cache.bytes_per_token for depth in (0, 1))


@pytest.mark.parametrize(
    ("name", "vary"),
    [
        ("t5-base", {"encoder.num_layers": [2, 12], "decoder.num_layers": [1, 5], "mixers.self.num_heads": [6, 12]}),
        ("deberta-base", {"encoder.num_layers": [2, 5, 12], "mixers.attn.num_heads": [6, 12]}),
        ("linformer", {"encoder.num_layers": [2, 5, 12], "ffns.mlp.intermediate_size": [512, 1024]}),
    ],
)
def test_tables_that_layers_place_at_the_root_are_counted_once_a_model(name: str, vary: dict[str, list[Any]]):
    engine = engine_of(name, vary)
    assert_alike(engine)
    # Depths alone teach nothing new.
    assert engine.num_slow <= 2


def test_layers_are_expanded_once_for_thousands_of_variants():
    vary = {
        "mixers.kda.num_heads": list(range(8, 72, 8)),
        "mixers.mla.kv_lora_rank": list(range(128, 1152, 128)),
        "stack.mixer": PATTERNS,
        "stack.num_layers": [19, 27, 35, 43],
        "ffns.moe.num_experts": [64, 128, 256, 512],
    }
    found = open_sweep(KIMI, vary)
    started = time.process_time()
    rows = list(found)
    seconds = time.process_time() - started
    assert (len(rows), len(found), [row for row in rows if row.error]) == (4096, 4096, [])
    assert found.num_expanded < 80
    # The house's own machine does more than twice as many; this only sees that nothing is expanded a variant.
    assert len(rows) / seconds > 500


def test_invalid_variants_are_rows_with_their_error():
    found = sweep(KIMI, {"stack.num_layers": [27, 28], "stack.mixer": [PATTERNS[0]], "mixers.kda.num_heads": [0, 32]})
    assert (len(found.rows), found.num_invalid) == (4, 3)
    errors = [record["error"] for record in found.records()]
    assert errors[1] is None
    assert "mixers.kda.num_heads: should be above 0 (found 0)" in errors[0]
    assert "stack.mixer" in errors[3]
    assert "28" in errors[3]
    assert found.records()[0]["parameters"] is None


def test_strict_stops_at_the_first_invalid_variant():
    with pytest.raises(
        VariantError, match=r"^mixers\.kda\.num_heads=0: mixers\.kda\.num_heads: should be above 0 \(found 0\)"
    ):
        sweep(KIMI, {"mixers.kda.num_heads": [32, 0]}, strict=True)


def test_overrides_hold_for_all_variants():
    found = sweep(KIMI, ["mixers.kda.num_heads=16,32"], overrides=["stack.num_layers=7", "stack.mixer=kda* mla"])
    spec = load_spec(KIMI, ["stack.num_layers=7", "stack.mixer=kda* mla", "mixers.kda.num_heads=16"])
    assert found.records()[0]["parameters"] == estimate(spec).parameters.total


def test_lengths_beyond_all_memory_stay_exact():
    length = 10**15
    found = sweep(KIMI, {"mixers.kda.num_heads": [32]}, at=(length,)).records()[0]
    one = estimate(load_spec(KIMI), max_model_len=length)
    assert (
        found[f"cache_bytes_at_{length}"] == one.cache.used_bytes == 8064 * length + found["state_bytes_per_sequence"]
    )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("16..64..16", [16, 32, 48, 64]),
        ("3..5", [3, 4, 5]),
        ("8..100..x2", [8, 16, 32, 64]),
        ("0.5..2..0.5", [0.5, 1.0, 1.5, 2.0]),
        ("16", None),
        ("a..b", None),
    ],
)
def test_ranges_include_their_ends(text: str, numbers: list[float] | None):
    found = parse_range(text)
    assert (None if found is None else list(found)) == numbers


@pytest.mark.parametrize(
    "text", ["9..3", "1..5..0", "0..8..x2", "4..8..x1", "0..1000000000", "1..99999999999999999999"]
)
def test_ranges_that_hold_nothing_or_too_much_are_refused(text: str):
    with pytest.raises(ValueError, match=text.replace(".", r"\.")):
        parse_range(text)


def test_everything_wrong_with_keys_is_said_at_once():
    with pytest.raises(SpecError) as caught:
        sweep(
            KIMI,
            [
                "mixers.kda.num_head=16",
                "mixers.kdb.num_heads=16",
                "stak.num_layers=3",
                "stack.num_layers=",
                "nonsense",
                "ffns.moe.num_experts=9..3",
                "extends=a,b",
                "norm.eps=1e-5",
                "norm.eps=1e-6",
            ],
        )
    text = str(caught.value)
    for part in (
        "mixers.kda.num_head: unknown key. Did you mean num_heads?",
        "no mixer is called kdb. Did you mean kda?",
        "stak.num_layers: unknown key. Did you mean stack?",
        "stack.num_layers: takes at least one value",
        "nonsense: should be KEY=VALUE",
        "9..3: ends below its start",
        "extends: a file's parent can't be varied",
        "norm.eps: is varied twice",
    ):
        assert part in text
    assert len(caught.value.problems) == 8


def test_a_key_that_another_varied_key_brings_is_no_mistake():
    vary = {
        "mixers.kda": [
            {"kind": "kda", "num_heads": 8, "head_dim": 64, "conv_kernel": 4},
            {"kind": "gqa", "num_heads": 8, "head_dim": 64},
        ],
        "mixers.kda.num_kv_heads": [2, 4],
    }
    found = sweep(KIMI, vary)
    assert found.num_invalid == 2
    assert "num_kv_heads: unknown key" in found.records()[0]["error"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": ()}, "at should name a length"),
        ({"at": (4, 4)}, "names a length twice"),
        ({"batch_size": 0}, r"batch_size should be at least 1 \(found 0\)"),
        ({"metrics": ["flop"]}, "no metric is called 'flop'. Did you mean flops?"),
        ({"vary": {}}, "nothing to vary"),
        ({"vary": {"norm.eps": []}}, "takes a list of values"),
        ({"vary": {"norm.eps": list(range(1001)), "max_position_embeddings": list(range(1000))}}, "1,001,000 variants"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ArchcError, match=message):
        sweep(KIMI, **{"vary": {"norm.eps": [1e-5]}, **options})


def test_metrics_choose_columns():
    found = sweep(KIMI, {"norm.eps": [1e-5]}, at=(8, 16), metrics=("cache", "parameters"))
    assert found.columns == (
        "norm.eps",
        "parameters",
        "active_parameters",
        "embedding_parameters",
        "cache_bytes_per_token",
        "state_bytes_per_sequence",
        "cache_bytes_at_8",
        "cache_bytes_at_16",
        "error",
    )


def test_an_encoder_has_no_decode_step():
    found = sweep("bert-base-uncased", {"norm.eps": [1e-5]}, at=(128,)).records()[0]
    one = estimate(load_spec("bert-base-uncased"), max_model_len=128)
    assert found["decode_flops_per_token_at_128"] is None
    assert found["prefill_flops_per_token_at_128"] * 128 == one.flops.numbers["forward"]


def test_sweep_is_a_function_of_the_library():
    assert archc.sweep is sweep
