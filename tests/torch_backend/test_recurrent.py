"""Recurrent encoders and decoders: against onnxruntime's own GRU, and against the equations of the paper spelled out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.errors import GraphError  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.spec.load import load_spec, loads_spec  # noqa: E402
from archc.testing.placing import spec_text  # noqa: E402

pytestmark = pytest.mark.torch

E, N, KEY, WORDS = 6, 5, 4, 12
SMALL = [
    f"embedding.hidden_size={E}",
    f"decoder.embedding.hidden_size={E}",
    f"tokenizer.vocab_size={WORDS}",
    f"decoder.tokenizer.vocab_size={WORDS + 3}",
    f"mixers.reader.hidden_size={N}",
    f"mixers.writer.hidden_size={N}",
    f"mixers.writer.score.hidden_size={KEY}",
    "head.hidden_size=7",
    "dtype=float32",
]
DRAW = torch.Generator().manual_seed(5)
SOURCE = torch.randint(0, WORDS, (2, 6), generator=DRAW)
TEXT = torch.randint(0, WORDS + 3, (2, 5), generator=DRAW)
LENGTHS = (6, 4)
MASK = (torch.arange(6) < torch.tensor(LENGTHS).unsqueeze(1)).long()


@pytest.fixture(scope="module")
def model() -> Any:
    model: Any = archc.build(load_spec("bahdanau-2015", SMALL), device="cpu", dtype="float64", seed=3).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=DRAW, dtype=torch.float64))
    return model


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


class Paper:
    """One pair of texts by the equations of arXiv 1409.0473, appendix A; names are the paper's."""

    def __init__(self, model: Any) -> None:
        self.weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}

    def __call__(self, source: Any, text: Any) -> Any:
        w, mixer = self.weights, "decoder.layers.0.mixer."
        h = self.annotations(w["encoder.embed_tokens.weight"][source])
        W, U, U_h = w[f"{mixer}input_proj.weight"], w[f"{mixer}gru.gates.weight"], w[f"{mixer}gru.candidate.weight"]
        C, W_a, U_a = w[f"{mixer}gru.context.weight"], w[f"{mixer}gru.query.weight"], w[f"{mixer}k_proj.weight"]
        v_a, W_s = w[f"{mixer}gru.weight"][0], w[f"{mixer}gru.init.weight"]
        # The paper's U_o, V_o and C_o side by side.
        output, W_o = w["maxout_proj.weight"], w["lm_head.weight"]
        s, logits = np.tanh(W_s @ h[0, N:]), []
        for y in w["decoder.embed_tokens.weight"][text]:
            e = np.array([v_a @ np.tanh(W_a @ s + U_a @ h_j) for h_j in h])
            c = np.exp(e) / np.exp(e).sum() @ h
            t = output @ np.concatenate((s, y, c))
            logits.append(W_o @ t.reshape(-1, 2).max(-1))
            z, r = sigmoid((W @ y + C @ c)[: 2 * N] + U @ s).reshape(2, N)
            new = np.tanh((W @ y + C @ c)[2 * N :] + U_h @ (r * s))
            s = (1 - z) * s + z * new
        return np.stack(logits)

    def annotations(self, x: Any) -> Any:
        """[forward state, backward state] of each word."""
        found = []
        for prefix, order in (("", range(len(x))), ("reverse_", reversed(range(len(x))))):
            scope = f"encoder.layers.0.mixer.{prefix}"
            W, U = self.weights[f"{scope}input_proj.weight"], self.weights[f"{scope}gru.gates.weight"]
            U_h, h, states = self.weights[f"{scope}gru.candidate.weight"], np.zeros(N), {}
            for i in order:
                z, r = sigmoid((W @ x[i])[: 2 * N] + U @ h).reshape(2, N)
                h = (1 - z) * h + z * np.tanh((W @ x[i])[2 * N :] + U_h @ (r * h))
                states[i] = h
            found.append(np.stack([states[i] for i in range(len(x))]))
        return np.concatenate(found, -1)


@torch.no_grad()
def test_the_translator_of_2015_is_the_equations_of_its_paper(model: Any) -> None:
    logits = model(TEXT, encoder_input_ids=SOURCE, encoder_attention_mask=MASK)
    paper = Paper(model)
    for row, count in enumerate(LENGTHS):
        expected = torch.from_numpy(paper(SOURCE[row, :count].numpy(), TEXT[row].numpy()))
        torch.testing.assert_close(logits[row], expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_step_by_step_over_what_is_kept_it_says_the_same(model: Any) -> None:
    whole = model(TEXT, encoder_input_ids=SOURCE, encoder_attention_mask=MASK)
    for pieces in ([5], [1] * 5, [2, 1, 2]):
        cache = archc.new_cache(model, batch=2, max_model_len=5, source_len=6)
        past, found = 0, []
        for count in pieces:
            given = {"encoder_attention_mask": MASK} | ({} if past else {"encoder_input_ids": SOURCE})
            found.append(model(TEXT[:, past : past + count], archc.Step.at(past, count), cache, **given))
            past += count
        # States are kept in float32 whatever the model's dtype.
        torch.testing.assert_close(torch.cat(found, 1), whole, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_it_compiles_in_one_graph(model: Any) -> None:
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    given = {"encoder_input_ids": SOURCE, "encoder_attention_mask": MASK}
    torch.testing.assert_close(compiled(TEXT, **given), model(TEXT, **given), rtol=1e-12, atol=1e-12)
    torch.compiler.reset()


def test_it_keeps_annotations_their_projections_and_one_state() -> None:
    graph = expand(load_spec("bahdanau-2015"))
    kept = {name.rpartition(".")[2]: graph.state_shape(state, batch=1, max_model_len=50, source_len=30)
            for name, state in graph.states().items()}  # fmt: skip
    assert kept == {"key": (1, 1, 30, 1000), "value": (1, 1, 30, 2000), "recurrent_state": (1, 1000)}


def test_its_parameters_are_those_of_the_shapes_in_the_paper() -> None:
    n, m, words, aligned, maxout = 1000, 620, 30_000, 1000, 500
    encoder = words * m + 2 * 3 * (n * m + n * n)
    alignment = aligned * n + aligned * 2 * n + aligned
    decoder = words * m + 3 * (n * m + n * n + n * 2 * n) + n * n + alignment
    output = 2 * maxout * (n + m + 2 * n) + words * maxout
    assert archc.estimate("bahdanau-2015").parameters.total == encoder + decoder + output == 80_401_000


@pytest.mark.onnx
@torch.no_grad()
@pytest.mark.parametrize("both", [False, True])
def test_a_gru_is_that_of_onnxruntime_and_its_way_back_begins_at_the_last_word_of_each_row(both: bool) -> None:
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    text = spec_text(
        "mixer",
        "gru",
        {"hidden_size": N, "bidirectional": both, "bias": True},
        {
            "encoder": {"num_layers": 1, "block": "plain", "mixer": "mixer", "ffn": "none"},
            "head": "none",
            "norm": "none",
        },
    )
    model: Any = archc.build(loads_spec(text), device="cpu", dtype="float32", seed=3).eval()
    ids = torch.randint(0, 40, (2, 6), generator=DRAW)
    mixer = model.layers[0].mixer
    prefixes = ("", "reverse_") if both else ("",)

    def stacked(name: str, fold: Any) -> Any:
        return np.stack([fold(mixer.get_submodule(f"{prefix}{name}").weight.numpy()) for prefix in prefixes])

    def turned(gates: Any) -> Any:
        # Theirs is H = (1 - z) new + z H, the paper's z the other way round.
        return np.concatenate((-gates[:N], gates[N:]))

    weights = {
        "W": stacked("input_proj", turned),
        "R": np.concatenate((stacked("gru.gates", turned), stacked("gru.candidate", lambda gate: gate)), 1),
        "B": np.stack([
            np.concatenate((turned(mixer.get_submodule(f"{prefix}input_proj").bias.numpy()), np.zeros(3 * N, np.float32)))
            for prefix in prefixes
        ]),
    }  # fmt: skip
    helper, number = onnx.helper, onnx.TensorProto
    node = helper.make_node(
        "GRU",
        ["X", "W", "R", "B", "lengths"],
        ["Y"],
        hidden_size=N,
        direction="bidirectional" if both else "forward",
        linear_before_reset=0,
    )
    graph = helper.make_graph(
        [node],
        "gru",
        [
            helper.make_tensor_value_info("X", number.FLOAT, [6, 2, 16]),
            helper.make_tensor_value_info("lengths", number.INT32, [2]),
        ],
        [helper.make_tensor_value_info("Y", number.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    x = model.embed_tokens(ids).transpose(0, 1).contiguous().numpy()
    (y,) = session.run(None, {"X": x, "lengths": np.array(LENGTHS, np.int32)})
    # (seq, directions, batch, N) -> (batch, seq, directions x N)
    expected = torch.from_numpy(y).permute(2, 0, 1, 3).flatten(2)
    found = model(ids, attention_mask=MASK)
    for row, count in enumerate(LENGTHS):
        torch.testing.assert_close(found[row, :count], expected[row, :count], rtol=1e-5, atol=1e-6)


def test_a_gru_that_reads_both_ways_is_refused_where_tokens_to_come_are_unknown() -> None:
    with pytest.raises(GraphError, match="reads both ways needs a bidirectional stack"):
        expand(loads_spec(spec_text("mixer", "gru", {"hidden_size": 8, "bidirectional": True})))


def test_an_attending_gru_is_refused_where_there_is_no_encoder() -> None:
    text = spec_text("mixer", "attention_gru", {"hidden_size": 8, "score": "dot"})
    with pytest.raises(GraphError, match="attention_gru reads an encoder, so it belongs in a decoder"):
        expand(loads_spec(text))


def test_a_layout_without_residuals_hands_on_what_its_branches_give() -> None:
    text = spec_text("block", "plain", {}, {"norm": "none", "position": "none"})
    model: Any = archc.build(loads_spec(text), device="cpu", dtype="float64", seed=1)
    layer, x = model.layers[0], torch.randn(1, 4, 16, generator=DRAW, dtype=torch.float64)
    torch.testing.assert_close(layer(x), layer.ffn(layer.mixer(x)), rtol=0, atol=0)


def test_maxout_keeps_the_largest_of_each_few_channels() -> None:
    text = spec_text("head", "maxout_lm", {"hidden_size": 5, "pool_size": 3}, {"norm": "none"})
    model: Any = archc.build(loads_spec(text), device="cpu", dtype="float64", seed=1)
    seen: dict[str, Any] = {}
    model.maxout_proj.register_forward_hook(lambda _, given, out: seen.update(wide=out))
    model.lm_head.register_forward_hook(lambda _, given, out: seen.update(narrow=given[0]))
    model(torch.arange(4).unsqueeze(0))
    wide = seen["wide"]
    expected = torch.stack([wide[..., 3 * i : 3 * i + 3].amax(-1) for i in range(5)], -1)
    torch.testing.assert_close(seen["narrow"], expected, rtol=0, atol=0)
