"""DeepSeek-V4's kinds: compressed attention, hyper-connections and experts by token id, against formulas written out."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from archc.errors import GraphError, SpecError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.ir.size import evaluate
from archc.ops.compressed import CompressedAttention
from archc.spec.load import load_spec, loads_spec
from tests.plugins.specs import gqa, tiny

HEADS, WIDTH, TURNED, WINDOW, THETA = 4, 8, 4, 5, 100.0
KEYS = (
    f"kind: compressed_attention, num_heads: {HEADS}, head_dim: {WIDTH}, q_lora_rank: 10, o_groups: 2, o_lora_rank: 6, "
    f"qk_rope_head_dim: {TURNED}, sliding_window: {WINDOW}"
)
HCA = f"{{{KEYS}, compress_ratio: 4}}"
CSA = f"{{{KEYS}, compress_ratio: 2, overlap: true, indexer: {{num_heads: 3, head_dim: 6, topk: 3}}}}"
POSITION = f"{{kind: rope, theta: {THETA}, interleaved: true, trailing: true}}"
BARE = "{num_layers: 1, block: {kind: pre_norm, mixer_norm: false}, layers: mixer, final_norm: false}"
MOE = "{kind: moe, num_experts: 4, num_experts_per_tok: 2, intermediate_size: 8, router: %s}"


def op_of(text):
    (op,) = {node.op for _, node in expand(loads_spec(text)).walk() if isinstance(node.op, CompressedAttention)}
    return op


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("overlap: true", "overlap: says something of entries, and there are none; state compress_ratio"),
        ("indexer: {num_heads: 1, head_dim: 8, topk: 1}", "indexer: says something of entries"),
        ("compress_ratio: 1", "compress_ratio"),
        ("compress_ratio: 2, indexer: {num_heads: 1, head_dim: 2, topk: 1}", "needs heads of qk_rope_head_dim, 4"),
    ],
)
def test_keys_that_say_nothing_are_refused(keys, message):
    with pytest.raises(SpecError, match=message):
        loads_spec(tiny(f"{{{KEYS}, {keys}}}"))


@pytest.mark.parametrize(("old", "new"), [("o_groups: 2", "o_groups: 3"), ("rope_head_dim: 4", "rope_head_dim: 9")])
def test_sizes_that_do_not_divide_are_refused(old, new):
    with pytest.raises(SpecError, match=new.split(":", maxsplit=1)[0]):
        loads_spec(tiny(HCA).replace(old, new))


@pytest.mark.parametrize(
    ("mixer", "why"), [(HCA, "keeps entries of the whole text"), (f"{{{KEYS}}}", "no more than its own window of 5")]
)
def test_a_cache_that_forgets_is_refused(mixer, why):
    with pytest.raises(SpecError, match=why):
        loads_spec(tiny(mixer, more="cache: {policy: window, window: 8}"))


@pytest.mark.parametrize(("past", "seq"), [(0, 1), (0, 3), (0, 23), (4, 1), (2, 9), (17, 1), (17, 6)])
@pytest.mark.parametrize(("mixer", "ratio", "topk"), [(f"{{{KEYS}}}", 0, 0), (HCA, 4, 99), (CSA, 2, 3)])
def test_what_it_costs_is_what_a_mask_lets_through(mixer, ratio, topk, past, seq):
    op = op_of(tiny(mixer))
    tokens = range(past, past + seq)
    near = sum(min(WINDOW, query + 1) for query in tokens)
    complete = [(query + 1) // ratio if ratio else 0 for query in tokens]
    read = sum(min(topk, entries) for entries in complete)
    scored = sum(complete) if mixer == CSA else 0
    pair, score = HEADS * 2 * WIDTH, 3 * (6 + 1)
    env = {"batch": 2, "past": past, "seq": seq}

    def flops(form, pairs):
        return evaluate(op.flops([], form, pairs), env)

    needed = 2 * 2 * ((near + read) * pair + scored * score)
    assert flops("many", "needed") == flops("few", "needed") == needed
    entries = (past + seq) // ratio if ratio else 0
    whole = seq * (min(past, WINDOW) + seq + entries) * pair + (seq * entries * score if mixer == CSA else 0)
    assert flops("many", "dense") == 2 * 2 * whole
    if seq == 1:
        assert flops("few", "dense") == needed


def test_caches_are_the_window_the_entries_and_what_later_entries_need():
    graph = expand(load_spec("deepseek-v4-flash"))
    lengths = {"batch": 1, "max_model_len": 1024}
    sizes = {
        name.split(".")[1] + "." + name.rsplit(".", 1)[1]: graph.state_shape(state, **lengths)[2:]
        for name, state in graph.states().items()
        if name.split(".")[1] in ("0", "2", "3")
    }
    assert sizes == {
        "0.key": (128, 512),
        "2.key": (128, 512),
        "2.entry": (256, 512),
        "2.pending": (3, 1024),
        "2.overlap": (7, 1024),
        "2.index_entry": (256, 128),
        "2.index_pending": (3, 256),
        "2.index_overlap": (7, 256),
        "3.key": (128, 512),
        "3.entry": (8, 512),
        "3.pending": (127, 1024),
    }
    # A decode step reads the entries that are chosen, and every one that is scored.
    far = estimate(graph, max_model_len=1 << 20)
    near = estimate(graph, max_model_len=1 << 16)
    assert far.cache.used_bytes - near.cache.used_bytes == ((1 << 20) - (1 << 16)) * 6880


def literal(x, weights, *, csa):
    """(seq, hidden) -> same in float64, a token and a channel at a time where the formula has them."""
    torch = pytest.importorskip("torch")
    w = {name: tensor.double() for name, tensor in weights.items()}
    x, ratio = x.double(), 2 if csa else 4

    def normed(row, name=None):
        row = row / torch.sqrt(row.square().mean() + 1e-5)
        return row if name is None else row * w[name]

    def turned(row, position):
        row, start = row.clone(), len(row) - TURNED
        for i in range(TURNED // 2):
            angle = position * THETA ** (-2 * i / TURNED)
            a, b = row[start + 2 * i].clone(), row[start + 2 * i + 1].clone()
            row[start + 2 * i] = a * math.cos(angle) - b * math.sin(angle)
            row[start + 2 * i + 1] = b * math.cos(angle) + a * math.sin(angle)
        return row

    def entries(scope, dim):
        rows, gates = (x @ w[f"{scope}.{name}_proj.weight"].T for name in ("kv", "gate"))
        bias, found = w[f"{scope}.entries.position_bias"], []
        for window in range(len(x) // ratio):
            inside = [(window * ratio + j, j, dim if csa else 0) for j in range(ratio)]
            if csa and window:
                inside += [((window - 1) * ratio + j, j, 0) for j in range(ratio)]
            mixed = torch.zeros(dim, dtype=torch.float64)
            for channel in range(dim):
                shares = torch.stack([gates[t, s + channel] + bias[j, s + channel] for t, j, s in inside]).softmax(0)
                mixed[channel] = sum(
                    share * rows[t, s + channel] for share, (t, _, s) in zip(shares, inside, strict=True)
                )
            found.append(turned(normed(mixed, f"{scope}.entries.norm_weight"), window * ratio))
        return found

    latents = [normed(w["q_a_proj.weight"] @ token, "q_a_norm.weight") for token in x]
    keys = [turned(normed(w["kv_proj.weight"] @ token, "kv_norm.weight"), t) for t, token in enumerate(x)]
    long = entries("compressor", WIDTH)
    small = entries("indexer", 6) if csa else []
    out = []
    for t, token in enumerate(x):
        seen = list(range((t + 1) // ratio))
        if csa:
            index_q = (w["indexer.q_b_proj.weight"] @ latents[t]).view(3, 6)
            index_q = [turned(q, t) for q in index_q]
            weight = w["indexer.weights_proj.weight"] @ token
            scores = [sum(weight[h] * torch.relu(index_q[h] @ small[e]) for h in range(3)) for e in seen]
            seen = sorted(seen, key=lambda e: (-float(scores[e]), e))[:3]
        read = [keys[s] for s in range(max(0, t - WINDOW + 1), t + 1)] + [long[e] for e in seen]
        heads = []
        for head, q in enumerate((w["q_b_proj.weight"] @ latents[t]).view(HEADS, WIDTH)):
            q = turned(normed(q), t)
            logits = torch.stack([q @ key * WIDTH**-0.5 for key in read] + [w["attention.sinks"][head]])
            shares = logits.softmax(0)
            heads.append(turned(sum(share * key for share, key in zip(shares, read, strict=False)), -t))
        halves = torch.cat(heads).view(2, -1)
        inner = torch.cat([part @ half for part, half in zip(w["o_a_proj.weight"].view(2, 6, -1), halves, strict=True)])
        out.append(w["o_b_proj.weight"] @ inner)
    return torch.stack(out)


@pytest.mark.torch
@pytest.mark.parametrize("csa", [False, True], ids=["hca", "csa"])
def test_it_is_the_formula_whole_and_over_a_cache(csa):
    torch = pytest.importorskip("torch")
    from archc.torch_backend.build import build, new_cache
    from archc.torch_backend.step import Step

    more = "head: none\nmax_position_embeddings: 64"
    text = tiny(CSA if csa else HCA, position=POSITION, stack=BARE, more=more)
    model = build(loads_spec(text), device="cpu", dtype="float32")
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) * 1.5 * weight.shape[-1] ** -0.5)
        ids = torch.randint(0, 40, (1, 19), generator=draw)
        x = model.embed_tokens(ids)[0]
        want = literal(x, model.get_submodule("layers.0.mixer").state_dict(), csa=csa)
        cache, cuts = new_cache(model, batch=1, max_model_len=19), [0, 6, 9, *range(10, 20)]
        pieces = [model(ids[:, a:b], Step.at(a, b - a), cache)[0] for a, b in pairwise(cuts)]
        for got in (model(ids)[0], torch.cat(pieces)):
            torch.testing.assert_close((got - x).double(), want, rtol=0, atol=2e-5 * float(want.abs().max()))


@pytest.mark.torch
@pytest.mark.parametrize("mixer", [f"{{{KEYS}}}", HCA, CSA], ids=["window", "hca", "csa"])
def test_a_long_text_taken_in_slices_is_the_same_text(mixer):
    torch = pytest.importorskip("torch")
    from archc.torch_backend.build import build, new_cache
    from archc.torch_backend.step import Step

    spec = loads_spec(tiny(mixer, position=POSITION))
    model, twin = build(spec, device="cpu", seed=1), build(spec, device="cpu", seed=1, twin="dense")
    ids = torch.randint(0, 20, (1, 600), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = twin(ids)
        limit = 2e-5 * float(want.abs().max())
        torch.testing.assert_close(model(ids), want, rtol=0, atol=limit)
        cache = new_cache(model, batch=1, max_model_len=600)
        first = model(ids[:, :7], Step.at(0, 7), cache)
        rest = model(ids[:, 7:], Step.at(7, 593), cache)
        torch.testing.assert_close(torch.cat((first, rest), 1), want, rtol=0, atol=limit)


@pytest.mark.torch
def test_a_mix_of_streams_keeps_their_sum_and_spreads_no_further():
    torch = pytest.importorskip("torch")
    from archc.ops.hyper_connection import HyperConnection
    from archc.torch_backend.leaves.hyper_connection import HyperConnection as Leaf

    op = HyperConnection(num_streams=4, sinkhorn_iters=300, eps=1e-7, norm_eps=1e-6)
    leaf = Leaf(op, None)
    draw = torch.Generator().manual_seed(0)
    for name, shape in (("fn", (24, 32)), ("base", (24,)), ("scale", (3,))):
        leaf.register_parameter(name, torch.nn.Parameter(0.3 * torch.randn(shape, generator=draw)))
    _, post, comb = leaf(torch.randn(2, 5, 32, generator=draw))
    square = comb.unflatten(-1, (4, 4))
    for axis in (-2, -1):
        torch.testing.assert_close(square.sum(axis), torch.ones(2, 5, 4), rtol=0, atol=1e-3)
    assert bool((torch.linalg.matrix_norm(square, ord=2) < 1.001).all())
    assert bool((post > 0).all())
    assert bool((post < 2).all())


def test_layers_with_streams_stand_beside_no_others():
    text = tiny(gqa("block: {kind: hyper_connections, num_streams: 2}"))
    with pytest.raises(GraphError, match="hyper_connections can't stand between layers of pre_norm"):
        expand(loads_spec(text))


def test_streams_are_counted_once_a_branch_and_once_at_the_end():
    text = tiny(gqa()).replace("block: pre_norm", "block: {kind: hyper_connections, num_streams: 3}")
    graph = expand(loads_spec(text))
    width = loads_spec(text).embedding.hidden_size
    found = {name: param.elements for name, param in graph.params().items() if "hc" in name}
    one = (3 * 2 + 9) * (3 * width + 1) + 3
    layers = sum(size for name, size in found.items() if name.startswith("layers."))
    assert layers % one == 0
    assert sum(size for name, size in found.items() if name.startswith("hc_head")) == 3 * (3 * width + 1) + 1


@pytest.mark.torch
def test_experts_by_id_are_drawn_apart_and_follow_the_id_alone():
    torch = pytest.importorskip("torch")
    from archc.torch_backend.build import build

    router = "{kind: token_table, scoring_func: sigmoid, norm_topk_prob: true}"
    spec = loads_spec(tiny(gqa(), ffn=MOE % router))
    model = build(spec, device="cpu", seed=0)
    (table,) = {
        tuple(map(tuple, t.tolist())) for name, t in model.named_buffers() if name.endswith("layers.0.ffn.router.table")
    }
    assert all(len(set(row)) == 2 and set(row) <= set(range(4)) for row in table)
    assert len(set(table)) > 1
    leaf = model.get_submodule("layers.0.ffn.router")
    ids = torch.tensor([[3, 5, 3]])
    indices, weights = leaf(torch.randn(1, 3, leaf.weight.shape[1]), ids)
    assert indices[0].tolist() == [list(table[i]) for i in (3, 5, 3)]
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 3))
