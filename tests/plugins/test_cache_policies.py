"""Cache policies: what paged takes, what window forgets, and where window is refused."""

from __future__ import annotations

import pytest

from archc.errors import GraphError, SpecError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.registry import temporary
from archc.spec.load import load_spec, loads_spec
from tests.plugins.specs import gqa, kda, mla, tiny

FORGETTING = {
    "a window shorter than every call": "window: 3",
    "a window between the calls' lengths": "window: 9",
    "a window longer than the text": "window: 50",
    "first tokens and one more": "window: 1, sink_tokens: 1",
    "first tokens and a short window": "window: 3, sink_tokens: 2",
    "more first tokens than a call has": "window: 2, sink_tokens: 14",
    "first tokens that the window reaches": "window: 40, sink_tokens: 3",
    "first tokens in half precision": "window: 8, sink_tokens: 4, dtype: float16",
}
MIXERS = {
    "gqa": gqa(),
    "gqa with sink logits": gqa("sink_logits: true"),
    "gqa with soft-capped scores": gqa("attn_logit_softcapping: 0.5"),
    "mla": mla(),
}


@pytest.mark.torch
@pytest.mark.parametrize("keys", FORGETTING.values(), ids=FORGETTING)
@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_a_mixer_that_forgets_keeps_the_contract(contract, mixer, keys):
    contract(tiny(mixer, more=f"cache: {{policy: window, {keys}}}"), tolerance=1e-2 if "float16" in keys else 2e-5)


@pytest.mark.torch
def test_a_policy_may_cut_a_wider_window_of_the_mixer(contract):
    cut = tiny(gqa("sliding_window: 9"), more="cache: {policy: window, window: 4}")
    contract(cut)
    graphs = [expand(loads_spec(text)) for text in (cut, tiny(gqa("sliding_window: 4")))]
    states = [{name: str(state) for name, state in graph.states().items()} for graph in graphs]
    assert states[0] == states[1]


@pytest.mark.torch
@pytest.mark.parametrize(("window", "first"), [(1, 0), (3, 0), (1, 2), (4, 3), (2, 30)])
@pytest.mark.parametrize("mixer", [gqa(), mla()], ids=["gqa", "mla"])
def test_a_token_sees_the_newest_and_the_first_tokens_and_none_between(mixer, window, first):
    torch = pytest.importorskip("torch")
    from archc.torch_backend.build import build

    spec = tiny(
        mixer,
        stack="{num_layers: 1, block: pre_norm, layers: mixer}",
        more=f"cache: {{policy: window, window: {window}, sink_tokens: {first}}}",
    )
    model = build(loads_spec(spec), device="cpu", seed=0)
    ids = torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        whole = model(ids)[0]
        for key in range(12):
            changed = ids.clone()
            changed[0, key] = 30
            moved = (model(changed)[0] - whole).abs().amax(-1) > 0
            sees = [key <= query and (query - key < window or key < first) for query in range(12)]
            assert moved.tolist() == sees, key


def test_a_window_bounds_the_cache_and_the_pairs():
    spec = load_spec("tiny-llama", ["cache.policy=window", "cache.window=12", "cache.sink_tokens=4"])
    graph = expand(spec)
    assert {state.allocated[2] for state in graph.states().values()} == {16}
    assert {state.growth for state in graph.states().values()} == {"ring"}
    free, bound = (estimate(of, max_model_len=4096) for of in (load_spec("tiny-llama"), graph))
    assert bound.cache.bytes_per_token == 0
    assert bound.cache.used_bytes == bound.cache.allocated_bytes == 16 * free.cache.bytes_per_token
    assert {kind.window for kind in bound.cache.by_kind} == {16}
    assert bound.flops.numbers["decode"] < free.flops.numbers["decode"]
    assert {kind.policy for kind in bound.cache.by_kind} == {"window"}


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 48, 49])
def test_a_paged_cache_takes_whole_blocks_of_its_own_size(tokens):
    spec = load_spec("tiny-llama", ["cache.policy=paged", "cache.block_size=48"])
    (kind,) = (found := estimate(spec, max_model_len=tokens).cache).by_kind
    assert (kind.policy, kind.block_size_tokens) == ("paged", 48)
    assert found.paged_bytes == -(-tokens // 48) * 48 * found.bytes_per_token
    assert found.used_bytes == estimate("tiny-llama", max_model_len=tokens).cache.used_bytes
    stated = estimate(spec, max_model_len=tokens, block_size=16).cache
    assert stated.paged_bytes == -(-tokens // 16) * 16 * found.bytes_per_token


def test_policies_of_two_mixers_are_counted_apart():
    text = tiny(
        gqa("cache: {policy: paged, block_size: 32}"),
        stack="{num_layers: 2, block: pre_norm, mixer: mixer other, ffn: ffn}",
    ).replace("ffns:", f"  other: {mla()}\nffns:")
    by_name = {kind.name: kind for kind in estimate(loads_spec(text), max_model_len=17).cache.by_kind}
    assert [(kind.policy, kind.block_size_tokens) for kind in by_name.values()] == [("paged", 32), ("full", 16)]
    for kind in by_name.values():
        assert kind.paged_bytes == 32 * kind.bytes_per_token


def test_paging_changes_nothing_that_is_computed():
    full, paged = (expand(load_spec("tiny-llama", [f"cache.policy={policy}"])) for policy in ("full", "paged"))
    assert {name: str(state) for name, state in full.states().items()} == {
        name: str(state) for name, state in paged.states().items()
    }


MIXED = """\
spec_version: 1
name: mixed
tokenizer: {{kind: external, vocab_size: 50}}
embedding: {{hidden_size: 16, tie_word_embeddings: true}}
position: none
norm: {{kind: rms_norm, eps: 1e-5}}
mixers:
  kda: {kda}
  mla: {mla}
  near: {near}
  chunk: {chunk}
ffns:
  mlp: {{kind: swiglu, intermediate_size: 16}}
stack: {{num_layers: 4, block: pre_norm, mixer: {placed}, ffn: mlp}}
cache: {{policy: window, {keys}}}
"""
NO_ROW = "kda, which keeps a state and no row a token"
NEAR = "near, which sees no more than its own window of 4 tokens"
CHUNK = "chunk, which sees no more than its own chunk of 4 tokens"


def mixed(placed: str, keys: str = "window: 8", **mixers: str) -> str:
    known = {
        "kda": kda(),
        "mla": mla(),
        "near": gqa("sliding_window: 4"),
        "chunk": gqa("attention_chunk_size: 4"),
        **mixers,
    }
    return MIXED.format(placed=placed, keys=keys, **known)


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        loads_spec(text, file="my.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_a_window_is_refused_where_it_fits_no_mixer_that_it_rules():
    hint = "Put it on the mixers that do: mixers.mla.cache"
    assert problems(mixed("(kda*3 mla)*")) == [f"my.yaml:15:17: cache.policy: window does not fit {NO_ROW}. {hint}"]
    assert problems(mixed("mla near chunk mla")) == [
        f"my.yaml:15:17: cache.policy: window does not fit {NEAR}, nor {CHUNK}. {hint}"
    ]


def test_first_tokens_are_refused_where_the_mixer_does_not_see_them():
    assert loads_spec(mixed("near", "window: 2"))
    (problem,) = problems(mixed("near", "window: 2, sink_tokens: 1"))
    assert problem.startswith(f"my.yaml:15:17: cache.policy: window does not fit {NEAR}. Put it on")


def test_the_nearest_policy_rules():
    assert loads_spec(mixed("(kda*3 mla)*", kda=kda("cache: full")))
    text = mixed("mla", kda=kda("cache: {policy: window, window: 8}"))
    assert problems(text) == [
        f"my.yaml:8:63: mixers.kda.cache.policy: window does not fit {NO_ROW}. "
        "Put it on the mixers that do: mixers.mla.cache"
    ]
    in_stack = mixed("(kda*3 mla)*").replace("ffn: mlp}", "ffn: mlp, cache: full}")
    assert loads_spec(in_stack)


def test_a_window_and_what_else_is_wrong_are_told_in_one_run():
    text = mixed("[kda, lma]", "dtype: bf16, state_dtype: fp32")
    found = problems(text)
    assert any(
        "cache.policy: window does not fit kda, which keeps a state and no row a token" in line for line in found
    )
    assert any("cache: window is required" in line for line in found)
    assert any("cache.dtype: unknown (found bf16). Did you mean bfloat16?" in line for line in found)
    assert any("stack.mixer" in line for line in found)


class Boundless(Mixer):
    """A third party's mixer that claims rows and keeps a convolution's columns only."""

    def define(self, g: Builder, x: Value) -> Value:
        return g.causal_conv(("conv",), (x,), kernel=3)[0]


def test_a_mixer_that_keeps_no_row_and_does_not_say_so_is_refused_when_it_is_traced():
    with temporary({("mixer", "boundless"): Boundless}):
        spec = loads_spec(tiny("{kind: boundless}", more="cache: {policy: window, window: 4}"))
        with pytest.raises(
            GraphError, match=r"mixers\.mixer: boundless keeps no row a token under cache policy window"
        ):
            expand(spec)
