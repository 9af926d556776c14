"""Layers that read keys and values of an earlier one: the contract, the formula written out, what is kept, and mistakes."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from archc.errors import GraphError, SpecError  # noqa: E402
from archc.estimation.estimate import estimate  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.graph.vocabulary import Builder  # noqa: E402
from archc.ir.size import BATCH, SEQ  # noqa: E402
from archc.ir.values import TensorType  # noqa: E402
from archc.ops.shared_attention import SharedAttention  # noqa: E402
from archc.spec.load import load_spec, loads_spec  # noqa: E402
from archc.spec.shipped import shipped_specs  # noqa: E402
from archc.torch_backend.build import build, new_cache  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.plugins.specs import tiny  # noqa: E402
from tests.plugins.test_references import drawn, weights_of  # noqa: E402

pytestmark = pytest.mark.torch

PATTERN = "own*2 full near far*2 near far"


def shared(keys="", *, window=6, pattern=PATTERN, far="", position="{kind: rope, theta: 100.0}", more="", stack=""):
    """Two windowed owners and a full one; ``near`` reads the second owner's window, ``far`` the full layer's rows."""
    sized = f"kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8{', ' if keys else ''}{keys}"
    mixers = (
        f"{{{sized}, sliding_window: {window}}}\n"
        f"  full: {{{sized}}}\n"
        f"  far: {{extends: full, kv_from: full{', ' if far else ''}{far}}}\n"
        "  near: {extends: own, kv_from: own}"
    )
    count = sum(int(name.partition("*")[2] or 1) for name in pattern.split())
    layers = f"{{num_layers: {count}, block: pre_norm, mixer: {pattern}, ffn: ffn{stack}}}"
    text = tiny(mixers, position=position, stack=layers, more=more)
    return text.replace("  mixer: {kind: gqa", "  own: {kind: gqa", 1)


FORMS = {
    "plain": shared(),
    "normed heads": shared("qk_norm: head"),
    "normed after turning": shared("qk_norm: unit"),
    "sinks": shared("sink_logits: true"),
    "soft cap, gate and biases": shared("attn_logit_softcapping: 2.0, output_gate: true, qkv_bias: true, o_bias: true"),
    "slopes": shared(position="alibi"),
    "a window of one": shared(window=1),
    "a window beyond the text": shared(window=99),
    "sharing by two, as cross-layer attention does": shared(pattern="full far full far full far"),
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_layers_that_read_others_keep_the_contract(contract, text):
    contract(text)


def test_chunks_are_read_as_windows_are(contract):
    contract(shared().replace("sliding_window", "attention_chunk_size"))


def test_the_nearest_earlier_layer_is_read():
    calls = {
        int(call.name.split(".")[1]): call for call in expand(loads_spec(shared())).root.calls() if "." in call.name
    }
    rows = {owner: set(calls[owner].outputs[-2:]) for owner in (1, 2)}
    assert all(rows[1] <= set(calls[reader].inputs) for reader in (3, 6))
    assert all(rows[2] <= set(calls[reader].inputs) for reader in (4, 5, 7))
    # The first owner is read by nobody, and gives nothing.
    assert len(calls[0].outputs) == 1


def test_equal_readers_share_one_body():
    graph = expand(loads_spec(shared(pattern="full far*5")))
    assert len({call.body for call in graph.root.calls() if call.body.label.startswith("far")}) == 1


def written_out(x, weights, owner, theta, sees):
    """(seq, hidden) -> same: queries of x over keys and values of what the owner reads, a query at a time."""
    (owner_x, owner_weights), d, seq = owner, 8, len(x)

    def turned(row, position):
        half = len(row) // 2
        angle = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
        low, high = row[:half], row[half:]
        return torch.cat((low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()))

    q = (x @ weights["q_proj.weight"].T).view(seq, 4, d)
    k, v = ((owner_x @ owner_weights[f"{n}_proj.weight"].T).view(seq, 2, d) for n in "kv")
    rows = []
    for s in range(seq):
        heads = []
        for head in range(4):
            seen = [t for t in range(seq) if sees(s, t)]
            scores = [float(turned(q[s, head], s) @ turned(k[t, head // 2], t)) / math.sqrt(d) for t in seen]
            shares = torch.tensor(scores, dtype=torch.float64).softmax(0)
            heads.append(sum(share * v[t, head // 2] for share, t in zip(shares, seen, strict=True)))
        rows.append(torch.cat(heads))
    return torch.stack(rows) @ weights["o_proj.weight"].T


@pytest.mark.parametrize("window", [3, 99])
def test_a_reader_is_the_formula_over_the_owners_keys_and_values(window):
    bare = "own near near"
    text = shared(window=window, pattern=bare, more="head: none")
    text = text.replace("block: pre_norm", "block: {kind: pre_norm, mixer_norm: false}, final_norm: false")
    text = text.replace("ffn: ffn}", "ffn: none}")
    _, model = drawn(text)
    ids = torch.arange(14).unsqueeze(0)
    weights = [weights_of(model, f"layers.{i}.mixer") for i in range(3)]
    with torch.no_grad():
        x = first = model.embed_tokens(ids)[0]
        for i in range(3):
            x = x + written_out(x, weights[i], (first, weights[0]), 100.0, lambda s, t: s - window < t <= s)
        got = model(ids)[0]
    torch.testing.assert_close(got, x, rtol=0, atol=2e-5 * float(x.abs().max()))


def test_a_reader_owns_no_keys_and_keeps_nothing():
    graph = expand(loads_spec(shared()))
    assert not [name for name in graph.params() if name.startswith(("layers.3.", "layers.4.")) and "k_proj" in name]
    assert {name.split(".")[1] for name in graph.states()} == {"0", "1", "2"}


def test_what_a_reader_owns_does_not_depend_on_what_it_reads():
    # A reader of three heads' width less: keys and values of 2 heads of 8 from 16 channels.
    saved = estimate(loads_spec(shared(pattern="full*2"))).parameters.total
    assert saved - estimate(loads_spec(shared(pattern="full far"))).parameters.total == 2 * 16 * 16


def test_the_shipped_decoder_decoder_keeps_one_full_cache():
    found = estimate(load_spec(shipped_specs()["demo-yoco"]), max_model_len=131072)
    keys_and_values_bytes = 2 * 4 * 128
    assert found.cache.bytes_per_token == keys_and_values_bytes
    assert found.cache.used_bytes == keys_and_values_bytes * (131072 + 11 * 1024)
    width, inner, projections = 2048, 5632, 2 * 2048 * 16 * 128
    keys = 2 * 2048 * 4 * 128
    layers = 24 * (projections + 3 * width * inner + 2 * width) + 12 * keys
    assert found.parameters.total == 32000 * width + layers + width


def test_a_window_is_forgotten_by_readers_as_by_its_owner():
    text = shared(pattern="full far*2", more="cache: {policy: window, window: 5, sink_tokens: 2}")
    graph = expand(loads_spec(text))
    attention = [node.op for _, node in graph.walk() if isinstance(node.op, SharedAttention)]
    assert {(op.window, op.sink_tokens) for op in attention} == {(5, 2)}
    model = build(graph, device="cpu", dtype="float32", seed=0)
    ids = torch.randint(0, 40, (2, 23), generator=torch.Generator().manual_seed(0))
    cache = new_cache(model, batch=2, max_model_len=23)
    with torch.no_grad():
        whole = model(ids)
        parts = [model(ids[:, :9], Step.at(0, 9), cache), model(ids[:, 9:15], Step.at(9, 6), cache)]
        parts += [model(ids[:, i : i + 1], Step.at(i, 1), cache) for i in range(15, 23)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=2e-5 * float(whole.abs().max()))


def test_a_policy_stated_for_a_reader_is_that_of_its_owner():
    plain = expand(loads_spec(shared(pattern="full far")))
    stated = expand(loads_spec(shared(pattern="full far", far="cache: {policy: window, window: 5}")))
    assert [node.op for _, node in plain.walk()] == [node.op for _, node in stated.walk()]


def test_readers_follow_a_prefix_as_their_owner_does():
    graph = expand(loads_spec(shared(pattern="full far", stack=", mask: prefix")))
    assert all(op.has_prefix for _, node in graph.walk() if isinstance(op := node.op, SharedAttention))
    model = build(graph, device="cpu", dtype="float32", seed=0)
    ids = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 40
    length = torch.tensor([5, 5])
    with torch.no_grad():
        first, second = (model(given, prefix_length=length) for given in (ids, changed))
    # The first token sees the last of the prefix.
    assert float((first - second)[:, 0].abs().max()) > 0


MISTAKES = {
    "an unknown mixer": ("kv_from: full", "kv_from: ful", "no mixer is called ful. Did you mean full?"),
    "itself": ("kv_from: full", "kv_from: far", "a mixer can't read its own keys and values"),
    "a reader": ("kv_from: full", "kv_from: near", "near has no keys and values, it reads those of own. kv_from: own"),
    "another window": (
        "kv_from: full",
        "kv_from: own",
        "far reads keys and values made with sliding_window 6 (found none)",
    ),
    "other heads": ("kv_from: full", "kv_from: full, num_kv_heads: 1", "made with num_kv_heads 2 (found 1)"),
    "another rotation": ("kv_from: full", "kv_from: full, position: none", "which another position has turned"),
    "a later layer": (
        "mixer: own*2",
        "mixer: far own*2",
        "layer 0 (counted from 0), far, reads full, and no earlier layer",
    ),
    "a stack that sees everything": ("block: pre_norm", "block: pre_norm, mask: bidirectional", "a causal mask only"),
}


@pytest.mark.parametrize(("old", "new", "says"), MISTAKES.values(), ids=MISTAKES)
def test_reading_what_is_not_there_is_a_mistake(old, new, says):
    text = shared().replace(old, new, 1).replace("num_layers: 8", f"num_layers: {9 if 'far own' in new else 8}")
    with pytest.raises(SpecError) as raised:
        loads_spec(text)
    assert says in str(raised.value)
    assert len(raised.value.problems) == 1


def test_a_state_is_no_keys_and_values():
    text = (
        shared()
        .replace("ffns:", "  kda: {kind: kda, num_heads: 2, head_dim: 8}\nffns:")
        .replace("kv_from: full", "kv_from: kda")
    )
    with pytest.raises(SpecError, match="kda, which is kda, keeps nothing that gqa could read"):
        loads_spec(text)


def test_rows_of_another_shape_are_no_rows_of_this_attention():
    g = Builder()
    x = g.add_input("x", TensorType((BATCH, SEQ, 32)))
    words = {"num_kv_heads": 2, "scale": 1.0, "window": None, "chunk": None, "sinks": False, "soft_cap": None}
    words |= {"slopes": None, "bias": None}
    _, keys, values = g.attention_and_rows("a", x, x, x, num_heads=2, **words)
    with pytest.raises(GraphError, match="shared_attention: the rows are"):
        g.shared_attention("b", x, keys, values, num_heads=2, **{**words, "window": 4})
    with pytest.raises(GraphError, match="queries 32 wide are not 4 heads of 16"):
        g.shared_attention("c", x, keys, values, num_heads=4, **words)
