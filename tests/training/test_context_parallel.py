"""Tokens of a sequence cut over ranks: losses and gradients of one process, and who is refused."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc import Parallel  # noqa: E402
from archc.errors import SpecError  # noqa: E402
from archc.planning.trainable import training_limits  # noqa: E402
from archc.torch_backend.leaves.softmax import visible  # noqa: E402
from archc.training.parallel import context  # noqa: E402
from archc.training.parallel.context import first_seen  # noqa: E402
from archc.training.parallel.world import World  # noqa: E402
from tests.training.compared import assert_losses_of_one_process  # noqa: E402
from tests.training.ranks import run_ranks  # noqa: E402

pytestmark = pytest.mark.torch

WORKER = Path(__file__).with_name("context_parallel_worker.py")


@pytest.mark.parametrize(("ranks", "cases"), [(2, 16), (4, 6)])
def test_cut_sequences_give_the_losses_and_every_gradient_of_one_process(ranks, cases):
    """Plain, latent and scored attention, windows, chunks, sinks, slopes, caps, biases, an earlier layer's keys; recomputed."""
    for output in run_ranks(WORKER, ranks):
        assert_losses_of_one_process(output)
        assert output.count("equal: ") == cases


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tiny-kimi-linear", "linear_attention of kda carries a recurrent state from token to token"),
        ("tiny-qwen3-next", "causal_conv of gdn reads what earlier tokens left behind"),
        ("nsa-demo", "native_sparse_attention of nsa reads what earlier tokens left behind"),
        ("bert-base-uncased", "only the tokens of a causal stack are gathered yet, and this one is bidirectional"),
        ("tiny-t5", "the tokens of an encoder are not gathered yet"),
        ("vit-base-patch16-224", r"what is read here \(pixel_values\) is not told its positions"),
    ],
)
def test_what_needs_more_of_other_tokens_than_keys_and_values_is_refused_with_the_reason(name, why):
    graph = archc.expand(archc.load_spec(name))
    with pytest.raises(SpecError, match=why) as caught:
        context.cut(archc.build(graph), graph, World(Parallel(cp=2), torch.device("cpu")))
    said = [problem.message for problem in caught.value.problems]
    assert said == [reason for reason in training_limits(graph, Parallel(cp=2)) if "(cp)" in reason]


def test_nothing_of_another_shipped_model_is_refused():
    """A causal model with softmax attention only can be cut, whatever else it has."""
    for name in (
        "tiny-llama",
        "tiny-deepseek-v3",
        "tiny-gpt-oss",
        "tiny-scores",
        "demo-yoco",
        "bloom-7b1",
        "gemma-3-4b",
    ):
        assert training_limits(archc.expand(archc.load_spec(name)), Parallel(cp=2)) == []


@pytest.mark.parametrize(
    "reach", [{}, {"window": 3}, {"chunk": 4}, {"window": 3, "sink_tokens": 2}, {"window": 5, "chunk": 4}]
)
def test_no_key_before_the_first_seen_is_seen(reach):
    keys = torch.arange(24).unsqueeze(0)
    for begin in range(24):
        seen = visible(keys[:, begin:], keys, **reach)
        assert not seen[..., : first_seen(begin, **reach)].any()
        assert seen[0, 0, 0, first_seen(begin, **reach)]
