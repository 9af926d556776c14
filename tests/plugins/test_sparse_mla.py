"""Latent attention over chosen keys: the choice, its costs, and both against formulas written out."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from archc.errors import SpecError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.ir.size import evaluate
from archc.ops.sparse_latent import SparseLatentAttention
from archc.spec.load import load_spec, loads_spec
from tests.plugins.specs import mla, tiny

LENGTH, TOPK = 17, 5
BARE = "{num_layers: 1, block: {kind: pre_norm, mixer_norm: false}, layers: mixer, final_norm: false}"
SPARSE = mla("q_lora_rank: 10, indexer: {num_heads: 3, head_dim: 6, topk: %d}").replace("kind: mla", "kind: sparse_mla")


def sparse(topk=TOPK, keys=""):
    return (SPARSE % topk)[:-1] + f"{keys}}}"


def op_of(text):
    (op,) = {node.op for _, node in expand(loads_spec(text)).walk() if isinstance(node.op, SparseLatentAttention)}
    return op


def test_a_query_without_compression_has_nothing_for_the_indexer_to_read():
    text = tiny(sparse())
    assert loads_spec(text).mixers["mixer"].q_lora_rank == 10
    for wrong in ("", "q_lora_rank: null, "):
        with pytest.raises(SpecError, match="q_lora_rank"):
            loads_spec(text.replace("q_lora_rank: 10, ", wrong))


def test_index_heads_are_as_wide_as_what_turns_at_least():
    with pytest.raises(SpecError, match=r"needs heads of qk_rope_head_dim, 4, channels at least.*found head_dim 3"):
        loads_spec(tiny(sparse()).replace("head_dim: 6, topk", "head_dim: 3, topk"))


def test_a_cache_that_forgets_is_refused():
    with pytest.raises(SpecError, match="chooses among all tokens before its own"):
        loads_spec(tiny(sparse(), more="cache: {policy: window, window: 8}"))


def test_the_indexer_turns_leading_halves_whatever_the_attention_turns():
    text = tiny(sparse(), position="{kind: rope, theta: 100.0, interleaved: true, trailing: true}")
    ops = [node.op for _, node in expand(loads_spec(text)).walk() if node.op.op_name == "rotary"]
    queries, keys, index = ("interleaved", 12, 4, 8), ("interleaved", 4, 4, 0), ("half", 6, 4, 0)
    assert {(op.style, op.head_dim, op.dim, op.offset) for op in ops} == {queries, keys, index}
    # Two layers, and the indexer turns its queries and its key.
    assert len(ops) == 2 * 4


@pytest.mark.parametrize(("past", "seq"), [(0, 1), (0, 3), (0, 23), (4, 1), (2, 9), (17, 1), (17, 6)])
def test_what_it_costs_is_what_a_mask_lets_through(past, seq):
    op = op_of(tiny(sparse()))
    tokens = range(past, past + seq)
    # Non-zeros of the causal mask, and of the mask of chosen keys.
    seen = sum(key <= query for query in tokens for key in range(past + seq))
    read = sum(min(TOPK, query + 1) for query in tokens)
    whole = seq * (past + seq)
    heads, rank, nope, rope, value = 2, 12, 8, 4, 6
    score, pair, absorbed_pair = 3 * (6 + 1), heads * (nope + rope + value), heads * (2 * rank + rope)
    expanded, absorbed = ((past + seq), seq)
    env = {"batch": 2, "past": past, "seq": seq}

    def flops(form, pairs):
        return evaluate(op.flops([], form, pairs), env)

    weights = 2 * rank * heads * (nope + value)
    assert flops("many", "needed") == 2 * (2 * seen * score + 2 * read * pair + expanded * weights)
    assert flops("many", "dense") == 2 * (2 * whole * score + 2 * whole * pair + expanded * weights)
    assert flops("few", "needed") == 2 * (2 * seen * score + 2 * read * absorbed_pair + absorbed * weights)
    if seq == 1:
        assert flops("few", "dense") == flops("few", "needed")


def test_a_long_context_costs_the_indexer_all_keys_and_the_attention_topk():
    graph = expand(load_spec("deepseek-v3.2"))
    ops = [node.op for _, node in graph.walk() if isinstance(node.op, SparseLatentAttention)]
    assert len(ops) == 61
    few = [evaluate(ops[0].flops([], "few", "needed"), {"batch": 1, "past": past, "seq": 1}) for past in (9999, 10000)]
    # Past topk, one more cached token is one more index score and nothing else.
    assert few[1] - few[0] == 2 * 64 * (128 + 1)


def test_index_keys_are_cached_beside_latent_rows():
    graph = expand(load_spec("deepseek-v3.2"))
    assert estimate(graph).cache.bytes_per_token == 61 * (512 + 64 + 128) * 2 == 85_888
    assert {name.rsplit(".", 1)[1] for name in graph.states()} == {"latent", "index_key"}


def literal(x, weights, *, theta, chosen=None):
    """(seq, hidden) -> same in float64, a query at a time; ``chosen(s, scores)`` replaces the best TOPK of the scores."""
    torch = pytest.importorskip("torch")
    w = {name: tensor.double() for name, tensor in weights.items()}
    heads, index_heads, nope, rope, value, rank = 2, 3, 8, 4, 6, 12

    def normed(row, name):
        return row / torch.sqrt(row.square().mean() + 1e-6) * w[f"{name}.weight"]

    def turned(row, position, *, interleaved):
        row = row.clone()
        for i in range(rope // 2):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + rope // 2)
            angle = position * theta ** (-2 * i / rope)
            cos, sin = math.cos(angle), math.sin(angle)
            row[a], row[b] = row[a] * cos - row[b] * sin, row[b] * cos + row[a] * sin
        return row

    latents, shared, index_keys, rows = [], [], [], []
    for s, token in enumerate(x.double()):
        row = w["kv_a_proj_with_mqa.weight"] @ token
        latents.append(normed(row[:rank], "kv_a_layernorm"))
        shared.append(turned(row[rank:], s, interleaved=True))
        key = w["indexer.wk.weight"] @ token
        key = (key - key.mean()) / torch.sqrt(key.var(unbiased=False) + 1e-6)
        key = key * w["indexer.k_norm.weight"] + w["indexer.k_norm.bias"]
        index_keys.append(torch.cat((turned(key[:rope], s, interleaved=False), key[rope:])))
        q_latent = normed(w["q_a_proj.weight"] @ token, "q_a_layernorm")
        index_q = (w["indexer.wq_b.weight"] @ q_latent).view(index_heads, -1)
        index_q = [torch.cat((turned(q[:rope], s, interleaved=False), q[rope:])) for q in index_q]
        shares = (w["indexer.weights_proj.weight"] @ token).tolist()
        scores = [
            sum(c / math.sqrt(index_heads * 6) * max(0.0, float(q @ k)) for c, q in zip(shares, index_q, strict=True))
            for k in index_keys
        ]
        best = sorted(range(s + 1), key=lambda t: (-scores[t], t))[:TOPK] if chosen is None else chosen(s)
        q = (w["q_b_proj.weight"] @ q_latent).view(heads, nope + rope)
        kv = w["attention.kv_b_proj.weight"].view(heads, nope + value, rank)
        out = []
        for head in range(heads):
            query = torch.cat((q[head, :nope], turned(q[head, nope:], s, interleaved=True)))
            keys = torch.stack([torch.cat((kv[head, :nope] @ latents[t], shared[t])) for t in best])
            values = torch.stack([kv[head, nope:] @ latents[t] for t in best])
            out.append(torch.softmax(keys @ query / math.sqrt(nope + rope), 0) @ values)
        rows.append(w["o_proj.weight"] @ torch.cat(out))
    return torch.stack(rows)


def drawn(text, seed=0):
    """(float32 model with large weights, ids (1, LENGTH))."""
    torch = pytest.importorskip("torch")
    from archc.torch_backend.build import build

    model = build(loads_spec(text), device="cpu", dtype="float32", seed=seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=draw) * 1.5 * tensor.shape[-1] ** -0.5)
    return model, torch.randint(0, 40, (1, LENGTH), generator=draw)


def mixed(model, ids):
    """(what enters the mixer, what leaves it over all ids, and fed in pieces over a cache)."""
    import torch

    from archc.torch_backend.build import new_cache
    from archc.torch_backend.step import Step

    with torch.no_grad():
        x = model.embed_tokens(ids)[0]
        whole = model(ids)[0] - x
        cache = new_cache(model, batch=1, max_model_len=LENGTH)
        cuts = [0, 6, 10, *range(11, LENGTH + 1)]
        pieces = [model(ids[:, a:b], Step.at(a, b - a), cache)[0] for a, b in pairwise(cuts)]
    return x, whole, torch.cat(pieces) - x


ROPE = "{kind: rope, theta: 100.0, interleaved: true}"


def bare(mixer):
    return tiny(mixer, stack=BARE, position=ROPE, more="head: none\nmax_position_embeddings: 64")


def close(got, want, tolerance=2e-5):
    import torch

    torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=tolerance * float(want.abs().max()))


@pytest.mark.torch
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_the_formula_whole_and_over_a_cache(seed):
    model, ids = drawn(bare(sparse()), seed)
    x, whole, pieces = mixed(model, ids)
    want = literal(x, model.get_submodule("layers.0.mixer").state_dict(), theta=100.0)
    close(whole, want)
    close(pieces, want)


@pytest.mark.torch
def test_where_all_scores_are_equal_the_earliest_keys_are_read():
    import torch

    model, ids = drawn(bare(sparse()))
    with torch.no_grad():
        model.get_submodule("layers.0.mixer.indexer.weights_proj").weight.zero_()
    x, whole, pieces = mixed(model, ids)
    weights = model.get_submodule("layers.0.mixer").state_dict()
    want = literal(x, weights, theta=100.0, chosen=lambda s: list(range(min(TOPK, s + 1))))
    close(whole, want)
    close(pieces, want)


@pytest.mark.torch
@pytest.mark.parametrize("topk", [LENGTH, LENGTH + 1, 1000])
def test_where_no_text_is_longer_than_topk_it_is_latent_attention(topk):
    model, ids = drawn(bare(sparse(topk)))
    plain, _ = drawn(bare(mla("q_lora_rank: 10")))
    kept = {name: tensor for name, tensor in model.state_dict().items() if ".indexer." not in name}
    plain.load_state_dict(kept)
    for got, want in zip(mixed(model, ids), mixed(plain, ids), strict=True):
        close(got, want)


@pytest.mark.torch
def test_one_key_a_query_is_the_value_of_its_best_key():
    model, ids = drawn(bare(sparse(1)))
    _, whole, pieces = mixed(model, ids)
    close(pieces, whole)
    assert bool(whole.isfinite().all())


@pytest.mark.torch
def test_the_choice_is_exactly_topk_of_the_seen_keys_and_the_earlier_of_equals():
    import torch

    from archc.torch_backend.leaves.sparse_latent import chosen, places

    inf = float("-inf")
    scores = torch.tensor([[[2.0, 1.0, 1.0, 1.0, 3.0], [0.0, -0.0, 0.0, 0.0, -1.0], [-1.0, 5.0, inf, inf, inf]]])
    got = chosen(scores, 3)
    want = [[True, True, False, False, True], [True, True, True, False, False], [True, True, False, False, False]]
    assert got.tolist() == [want]
    assert places(got[:, 0], 3).tolist() == [[0, 1, 4]]
    # Fewer keys than topk: the chosen ones come first, and what fills up is masked by its caller.
    assert places(got[:, 2], 3)[0, :2].tolist() == [0, 1]
    assert chosen(scores, 5).tolist() == (scores > inf).tolist()


@pytest.mark.torch
def test_scores_in_pieces_are_the_scores(monkeypatch):
    import torch

    from archc.torch_backend.leaves import sparse_latent

    draw = torch.Generator().manual_seed(0)
    q, k, w = (torch.randn(shape, generator=draw) for shape in ((2, 7, 3, 6), (2, 9, 6), (2, 7, 3)))
    seen = torch.ones(1, 1, 7, 9, dtype=torch.bool).tril(2)
    whole = sparse_latent.index_scores(q, k, w, seen)
    monkeypatch.setattr(sparse_latent, "LARGEST_PRODUCTS", 100)
    assert torch.equal(sparse_latent.index_scores(q, k, w, seen), whole)
    for twin in (sparse_latent.scores_of("needed"), sparse_latent.scores_of("dense")):
        torch.testing.assert_close(twin(q, k, w, seen).float(), whole)


@pytest.mark.torch
def test_the_backward_pass_costs_twice_the_forward_of_all_but_the_indexer():
    from torch.utils.flop_counter import FlopCounterMode

    from archc.torch_backend.build import build

    text = bare(sparse())
    model = build(loads_spec(text), device="cpu", twin="dense", seed=0)
    _, ids = drawn(text)
    with FlopCounterMode(display=False) as counter:
        out = model(ids)
        forward = counter.get_total_flops()
        out.square().sum().backward()
    projections = 2 * LENGTH * (10 * 3 * 6 + 16 * 6 + 16 * 3)
    scores = 2 * LENGTH * LENGTH * 3 * (6 + 1)
    assert counter.get_total_flops() - forward == 2 * (forward - projections - scores)
    without = {name for name, weight in model.named_parameters() if weight.grad is None}
    names = ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
    assert without == {f"layers.0.mixer.indexer.{name}" for name in names}


@pytest.mark.onnx
@pytest.mark.torch
@pytest.mark.parametrize("keys", ["topk", "more than there are", "one", "all scores equal"])
def test_the_exported_file_chooses_the_same_keys(keys):
    import torch

    from archc.expansion import expand
    from archc.testing.kinds import WAYS
    from archc.testing.onnx_values import check_onnx, missing

    if missing() is not None:
        pytest.skip("onnxruntime is not installed")
    text = tiny(sparse({"topk": TOPK, "more than there are": 40, "one": 1}.get(keys, TOPK)), position=ROPE)
    text = f"{text}\nmax_position_embeddings: 64\n"
    model, _ = drawn(text)
    if keys == "all scores equal":
        with torch.no_grad():
            for layer in (0, 1):
                model.get_submodule(f"layers.{layer}.mixer.indexer.weights_proj").weight.zero_()
    ids = torch.randint(0, 40, (2, 23), generator=torch.Generator().manual_seed(1))
    error = check_onnx(expand(loads_spec(text)), model, ids, WAYS, tolerance=1e-4)
    assert error < 2e-5
