"""Native sparse attention: the contract, the formulas written out a query at a time, and what a choice may and may not change."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from archc.errors import ArchcError, SpecError  # noqa: E402
from archc.estimation.estimate import estimate  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from archc.torch_backend.build import build, new_cache  # noqa: E402
from archc.torch_backend.leaves.softmax import attend  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.plugins.specs import tiny  # noqa: E402
from tests.plugins.test_references import BARE, drawn, weights_of  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH = 27


def nsa(keys="", *, block=4, stride=2, select=4, count=4, initial=1, local=1, window=5, value=6, hidden=10):
    """An nsa with more keys."""
    sizes = f"compress_block_size: {block}, compress_stride: {stride}, select_block_size: {select}"
    chosen = f"num_selected_blocks: {count}, num_initial_blocks: {initial}, num_local_blocks: {local}"
    heads = f"num_heads: 4, num_kv_heads: 2, head_dim: 8, v_head_dim: {value}, compress_intermediate_size: {hidden}"
    return f"{{kind: nsa, {heads}, {sizes}, {chosen}, sliding_window: {window}{', ' if keys else ''}{keys}}}"


MIXERS = {
    "overlapping blocks": nsa(),
    "a wide mlp": nsa(hidden=50),
    "equal blocks": nsa(stride=4),
    "long blocks": nsa(block=6, stride=3, select=12, count=2, initial=0),
    "blocks of three strides": nsa(block=6, stride=2, select=8, count=3, local=2),
    "only what is always in": nsa(count=3, local=2),
    "one of many": nsa(block=2, stride=1, select=3, count=1, initial=0),
    "more blocks than there are": nsa(count=40),
    "values as wide as keys": nsa(value=8),
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_native_sparse_attention_keeps_the_contract(contract, mixer):
    contract(tiny(mixer))


def turned(row, position, theta):
    """A head, its halves turned by its position."""
    if theta is None:
        return row
    half = row.shape[0] // 2
    angle = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    low, high = row[:half], row[half:]
    return torch.cat((low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()))


def softmax_over(query, keys, values):
    """(shares, output) of one query; zeros where there is no key."""
    if not keys:
        return [], torch.zeros(values[0].shape[0] if values else 0, dtype=torch.float64)
    powers = [math.exp(float(query @ key) / math.sqrt(len(query))) for key in keys]
    shares = [power / sum(powers) for power in powers]
    return shares, sum(share * value for share, value in zip(shares, values, strict=True))


def written_out(x, weights, kind, theta):
    """(seq, hidden) -> same, and the chosen blocks of each (token, group), in the words of the paper."""
    d, dv, kv_heads, group = kind.head_dim, kind.v_head_dim, kind.num_kv_heads, kind.num_heads // kind.num_kv_heads
    block, stride, select = kind.compress_block_size, kind.compress_stride, kind.select_block_size

    def heads(name, width):
        return (x @ weights[f"{name}_proj.weight"].T).view(len(x), -1, width)

    def rotated(name):
        return [[turned(head, t, theta) for head in row] for t, row in enumerate(heads(name, d))]

    def compressed(rows, name):
        vector = torch.cat(
            [row + position for row, position in zip(rows, weights[f"sparse.{name}_position"], strict=True)]
        )
        vector = weights[f"sparse.{name}_up.weight"] @ vector
        return weights[f"sparse.{name}_down.weight"] @ (vector / (1 + torch.exp(-vector)))

    q = rotated("q")
    k = {branch: rotated(f"{branch}_k") for branch in ("compressed", "selected", "window")}
    v = {branch: heads(f"{branch}_v", dv) for branch in k}
    gates = {branch: 1 / (1 + torch.exp(-(x @ weights[f"{branch}_gate_proj.weight"].T))) for branch in k}
    out, choices = [], {}
    for t in range(len(x)):
        row = [None] * kind.num_heads
        for g in range(kv_heads):
            starts = [i * stride for i in range(len(x)) if i * stride + block - 1 <= t]
            small_k = [compressed([k["compressed"][s + n][g] for n in range(block)], "key") for s in starts]
            small_v = [compressed([v["compressed"][s + n][g] for n in range(block)], "value") for s in starts]
            own = t // select
            score = dict.fromkeys(range(own + 1), 0.0)
            for head in range(g * group, (g + 1) * group):
                shares, row[head] = softmax_over(q[t][head], small_k, small_v)
                if not small_k:
                    row[head] = torch.zeros(dv, dtype=torch.float64)
                for start, share in zip(starts, shares, strict=True):
                    for part in range(start, start + block, stride):
                        if part // select in score:
                            score[part // select] += share
            always = {j for j in score if j < kind.num_initial_blocks or j > own - kind.num_local_blocks}
            best = sorted(set(score) - always, key=lambda j: -score[j])
            chosen = choices[t, g] = always | set(best[: kind.num_selected_blocks - len(always)])
            read = [s for s in range(t + 1) if s // select in chosen]
            near = [s for s in range(t + 1) if s > t - kind.sliding_window]
            for head in range(g * group, (g + 1) * group):
                row[head] = row[head] * gates["compressed"][t, head]
                for branch, seen in (("selected", read), ("window", near)):
                    keys, values = [k[branch][s][g] for s in seen], [v[branch][s, g] for s in seen]
                    row[head] = row[head] + softmax_over(q[t][head], keys, values)[1] * gates[branch][t, head]
        out.append(torch.cat(row))
    return torch.stack(out) @ weights["o_proj.weight"].T, choices


@pytest.mark.parametrize("theta", [None, 100.0], ids=["without rope", "with rope"])
@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_native_sparse_attention_is_the_formula(mixer, theta):
    position = "none" if theta is None else f"{{kind: rope, theta: {theta}}}"
    spec, model = drawn(tiny(mixer, stack=BARE % "mixer", position=position, more="head: none"))
    ids = torch.arange(LENGTH).unsqueeze(0)
    with torch.no_grad():
        x = model.embed_tokens(ids)[0]
        got = model(ids)[0] - x
    want, choices = written_out(x, weights_of(model, "layers.0.mixer"), spec.mixers["mixer"], theta)
    # Rope's table is float32 by design.
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5 * float(want.abs().max()))
    kind = spec.mixers["mixer"]
    blocks = [len(choices[t, g]) for t in range(LENGTH) for g in range(2)]
    wanted = [min(kind.num_selected_blocks, t // kind.select_block_size + 1) for t in range(LENGTH) for _ in range(2)]
    assert blocks == wanted


def sparse_leaf(mixer, seed=0):
    """The leaf of the two sparse branches and random inputs for it: queries, then keys and values of both branches."""
    model = drawn(tiny(mixer, stack=BARE % "mixer", more="head: none"), seed)[1]
    draw = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(2, LENGTH, width, generator=draw, dtype=torch.float64) for width in (32, 16, 16, 16, 16)]
    return model.get_submodule("layers.0.mixer.sparse"), inputs


def test_when_every_block_is_selected_that_branch_is_full_attention():
    leaf, inputs = sparse_leaf(nsa(count=7, value=8))
    with torch.no_grad():
        selected = leaf(*inputs)[1]
    q, _, _, k, v = (x.view(2, LENGTH, -1, 8).transpose(1, 2) for x in inputs)
    full = attend(q, k, v, scale=8**-0.5, causal=True).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(selected, full, rtol=0, atol=1e-12)


def test_one_block_less_than_there_are_is_not_full_attention():
    all_of_them, some = (sparse_leaf(nsa(count=count, value=8)) for count in (7, 6))
    with torch.no_grad():
        full, sparse = (leaf(*inputs)[1] for leaf, inputs in (all_of_them, some))
    # Six blocks hold 24 tokens, so only the last three can tell.
    torch.testing.assert_close(full[:, :24], sparse[:, :24], rtol=0, atol=1e-12)
    assert float((full - sparse)[:, 24:].abs().max()) > 1e-3


def test_before_the_first_block_is_complete_the_compressed_branch_is_zero():
    leaf, inputs = sparse_leaf(nsa(block=6, stride=3, select=12, value=8))
    with torch.no_grad():
        compressed = leaf(*inputs)[0]
    assert not compressed[:, :5].any()
    assert compressed[:, 5:].abs().amax(-1).all()


def test_later_tokens_change_nothing_before_them():
    leaf, inputs = sparse_leaf(nsa(value=8))
    changed = [torch.cat((x[:, :19], x[:, 19:].flip(1) * 3), 1) for x in inputs]
    with torch.no_grad():
        for before, after in zip(leaf(*inputs), leaf(*changed), strict=True):
            torch.testing.assert_close(before[:, :19], after[:, :19], rtol=0, atol=1e-12)
            assert not torch.equal(before, after)


def test_a_step_reads_no_key_or_value_of_a_block_that_is_not_chosen():
    text = tiny(nsa(count=3, local=2), stack="{num_layers: 1, block: pre_norm, mixer: mixer, ffn: ffn}")
    model = build(loads_spec(text), device="cpu", seed=0)
    ids = torch.arange(LENGTH).unsqueeze(0)
    cache = new_cache(model, batch=1, max_model_len=LENGTH)
    with torch.no_grad():
        model(ids[:, :-1], Step.at(0, LENGTH - 1), cache)
        spoilt = {name: tensor.clone() for name, tensor in cache.items()}
        for ending in ("key", "value"):
            # Token 26 reads block 0 and blocks 5 and 6.
            spoilt[f"layers.0.mixer.sparse.{ending}"][:, :, 4:20] = float("nan")
        want = model(ids[:, -1:], Step.at(LENGTH - 1, 1), cache)
        got = model(ids[:, -1:], Step.at(LENGTH - 1, 1), spoilt)
    assert torch.equal(got, want)


@pytest.mark.parametrize("slab", [1, 700, 5000])
def test_slices_of_a_prompt_give_what_the_whole_of_it_gives(monkeypatch, slab):
    leaf, inputs = sparse_leaf(nsa(value=8))
    with torch.no_grad():
        whole = leaf(*inputs)
        monkeypatch.setattr("archc.torch_backend.leaves.blocks.SLAB_ELEMENTS", slab)
        for part, all_at_once in zip(leaf(*inputs), whole, strict=True):
            torch.testing.assert_close(part, all_at_once, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 16, 17, 26, 64])
def test_every_byte_of_the_estimate_is_in_a_tensor(tokens):
    graph = expand(loads_spec(tiny(nsa(block=6, stride=3, select=12))))
    cache = estimate(graph, dtype="float32", max_model_len=tokens).cache
    tensors = new_cache(build(graph, device="cpu"), batch=1, max_model_len=tokens)
    assert cache.allocated_bytes == sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    a_row = 2 * 2 * (8 + 6) * 4
    compressed = sum(1 for start in range(0, tokens, 3) if start + 6 <= tokens)
    assert cache.used_bytes == a_row * (tokens + compressed + min(tokens, 5) + 5)
    assert cache.total("convolution_bytes_per_sequence") == a_row * 5


REFUSED = {
    "compress_block_size: should be a multiple of compress_stride, 3": nsa(stride=3),
    "select_block_size: should be a multiple of compress_stride, 2": nsa(select=5),
    "compress_block_size: should be at most select_block_size, 4": nsa(block=6),
    "num_selected_blocks: should be at least num_initial_blocks + num_local_blocks, 5": nsa(local=4),
    "num_kv_heads: should divide num_heads, 4": nsa().replace("num_kv_heads: 2", "num_kv_heads: 3"),
    "compress_block_size: should be at least 2": nsa(block=1, stride=1),
}


@pytest.mark.parametrize("message", REFUSED)
def test_sizes_that_do_not_fit_each_other_are_refused_at_their_line(message):
    with pytest.raises(SpecError) as caught:
        loads_spec(tiny(REFUSED[message]))
    field, _, words = message.partition(": ")
    assert field in str(caught.value)
    assert words in str(caught.value)


def test_a_cache_that_forgets_and_slopes_on_scores_are_refused():
    with pytest.raises(ArchcError, match="chooses among the blocks of the whole text"):
        expand(loads_spec(tiny(nsa(), more="cache: {policy: window, window: 8}")))
    with pytest.raises(ArchcError, match="alibi"):
        expand(loads_spec(tiny(nsa(), position="alibi")))
