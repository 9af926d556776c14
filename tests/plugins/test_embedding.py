"""The token table's further keys: a norm over the embedding, and a table of token types."""

from __future__ import annotations

import pytest

import archc
from archc.errors import SpecError

pytestmark = pytest.mark.torch

TEXT = """
spec_version: 1
name: small
tokenizer: {kind: external, vocab_size: 96}
embedding: {hidden_size: 32, tie_word_embeddings: true, norm: true, type_vocab_size: 3}
position: {kind: rope, theta: 10000.0}
norm: {kind: rms_norm, eps: 1e-5}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}}
ffns: {mlp: {kind: swiglu, intermediate_size: 48}}
stack: {num_layers: 1, block: pre_norm, mixer: attn, ffn: mlp}
"""


def test_types_and_a_norm_are_added_to_the_embedding():
    import torch

    model = archc.build(archc.loads_spec(TEXT), device="cpu", seed=0)
    ids = torch.arange(10).view(2, 5)
    types = torch.tensor([[0, 1, 2, 1, 0], [2, 2, 0, 0, 1]])
    seen = []
    model.layers[0].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(ids, token_type_ids=types)
    sum_of_tables = model.embed_tokens.weight[ids] + model.token_type_embeddings.weight[types]
    want = torch.nn.functional.rms_norm(sum_of_tables, (32,), model.embed_norm.weight, 1e-5)
    torch.testing.assert_close(seen[0], want)
    model(ids)
    model(ids, token_type_ids=torch.zeros_like(ids))
    torch.testing.assert_close(seen[1], seen[2])


def test_the_norm_of_the_embedding_may_be_a_kind_of_its_own():
    spec = archc.loads_spec(TEXT.replace("norm: true", "norm: {kind: rms_norm, eps: 1e-3, weight_offset: 1.0}"))
    assert spec.embedding.norm.eps == 1e-3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("norm: 3", "should be a norm (found 3)"),
        ("norm: rms_nrm", "unknown norm (found rms_nrm). Did you mean rms_norm?"),
        ("norm: {kind: rms_norm}", "embedding.norm: eps is required"),
    ],
)
def test_a_wrong_norm_of_the_embedding_is_one_problem(wrong, words):
    with pytest.raises(SpecError) as caught:
        archc.loads_spec(TEXT.replace("norm: true", wrong))
    (problem,) = caught.value.problems
    assert words in str(problem)


def test_types_are_an_input_of_the_file(tmp_path):
    np = pytest.importorskip("numpy")
    pytest.importorskip("onnxruntime")
    import torch

    from archc_exporters.onnx.export import export
    from archc_exporters.onnx.session import Conversation, load_session

    graph = archc.expand(archc.loads_spec(TEXT))
    model = archc.build(graph, device="cpu", seed=0)
    archc.save_weights(model, tmp_path / "model.safetensors")
    export(graph, tmp_path / "out", dtype="float32", weights=tmp_path / "model.safetensors", max_model_len=15)
    talk = Conversation(load_session(tmp_path / "out" / "model.onnx"), batch=2, capacity=16)
    ids, types = torch.arange(10).view(2, 5), torch.tensor([[0, 1, 2, 1, 0], [2, 2, 0, 0, 1]])
    got = talk.step(ids.numpy(), token_type_ids=types.numpy())
    assert np.abs(got - model(ids, token_type_ids=types).detach().numpy()).max() < 1e-5


def test_whether_the_table_is_tied_is_asked_only_where_a_head_predicts_tokens():
    silent = TEXT.replace(", tie_word_embeddings: true", "")
    with pytest.raises(SpecError) as caught:
        archc.loads_spec(silent)
    (problem,) = caught.value.problems
    assert (problem.line, str(problem).split(": ", 1)[1]) == (5, "embedding: tie_word_embeddings is required")
    assert archc.loads_spec(f"{silent}head: none\n").embedding.tied() is False
