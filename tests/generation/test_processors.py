"""What can be drawn, and how likely, is what transformers' processors leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from archc.errors import ArchcError
from archc.generation.sampling import Sampler, Sampling, draw, kept, penalised

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

ROWS, SIZE = 8, 200
WAYS = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 1.0, "top_k": 1_000},
    {"temperature": 1.5, "top_p": 0.6},
    {"temperature": 1.0, "top_p": 0.01},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 2.0, "min_p": 1.0},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.2, "top_k": 30, "top_p": 0.8, "min_p": 0.2, "repetition_penalty": 1.3},
    {"temperature": 1.0, "repetition_penalty": 0.7},
]


def logits_and_prompts() -> tuple[Any, Any]:
    draw = torch.Generator().manual_seed(1)
    return 4 * torch.randn(ROWS, SIZE, generator=draw), torch.randint(0, SIZE, (ROWS, 30), generator=draw)


def processed(logits: Any, prompts: Any, sampling: Sampling) -> Any:
    """Probabilities by transformers, in the order of its own generate."""
    chain = transformers.LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        chain.append(transformers.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.append(transformers.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(transformers.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        chain.append(transformers.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        chain.append(transformers.MinPLogitsWarper(sampling.min_p))
    return chain(prompts, logits.clone()).softmax(-1).numpy()


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_probabilities_are_those_of_transformers(options: dict[str, Any]) -> None:
    logits, prompts = logits_and_prompts()
    sampling = Sampling(**options)
    expected = processed(logits, prompts, sampling)
    seen = np.zeros((ROWS, SIZE), bool)
    np.put_along_axis(seen, prompts.numpy(), True, axis=1)
    assert seen.any(1).all()
    numbers = penalised(logits.numpy(), seen, sampling.repetition_penalty)
    for row in range(ROWS):
        ids, shares = kept(numbers[row], sampling)
        found = np.zeros(SIZE)
        found[ids] = shares / shares.sum()
        assert set(ids.tolist()) == set(np.flatnonzero(expected[row]).tolist())
        np.testing.assert_allclose(found, expected[row], atol=1e-6)


def test_min_p_of_the_definition() -> None:
    logits = np.log(np.array([0.5, 0.2, 0.19, 0.06, 0.05], np.float32))
    for min_p, count in ((0.0, 5), (0.11, 4), (0.13, 3), (0.39, 2), (0.41, 1), (1.0, 1)):
        assert kept(logits, Sampling(temperature=1.0, min_p=min_p))[0].tolist() == list(range(count))


def test_a_penalty_counts_the_prompt_and_what_was_drawn() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0), [[0, 0], [3]], vocab_size=4)
    logits = np.array([[5.0, 3.0, 1.0, -1.0], [-4.0, -3.5, -3.0, -1.4]], np.float32)
    # Row 0: 5 becomes 2.5, then 3 becomes 1.5; row 1: -1.4 becomes -2.8, then -5.6 is never reached: seen once is seen.
    assert sampler.draw(logits).tolist() == [1, 3]
    assert sampler.draw(logits).tolist() == [0, 3]
    assert logits[0, 0] == 5.0


def test_greedy_with_a_penalty_is_transformers_greedy() -> None:
    logits, prompts = logits_and_prompts()
    sampler = Sampler(Sampling(repetition_penalty=1.4), prompts.tolist(), vocab_size=SIZE)
    processor = transformers.RepetitionPenaltyLogitsProcessor(1.4)
    generator = torch.Generator().manual_seed(2)
    for _ in range(20):
        expected = processor(prompts, logits.clone()).argmax(-1)
        assert sampler.draw(logits.numpy()).tolist() == expected.tolist()
        prompts = torch.cat([prompts, expected.unsqueeze(1)], 1)
        logits = 4 * torch.randn(ROWS, SIZE, generator=generator)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"temperature": 5.0, "repetition_penalty": 3.0}], ids=str
)
def test_logits_beyond_the_vocabulary_are_never_drawn(options: dict[str, Any]) -> None:
    logits = np.concatenate([np.zeros((2, 10)), np.full((2, 6), 100.0)], 1).astype(np.float32)
    sampler = Sampler(Sampling(**options), [[1], [2]], vocab_size=10)
    drawn = np.stack([sampler.draw(logits) for _ in range(200)])
    assert drawn.min() >= 0
    assert drawn.max() < 10


def test_each_row_has_a_seed_of_its_own() -> None:
    logits = np.zeros((3, 1000), np.float32)

    def drawn(seed: Any) -> list[list[int]]:
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), [[0]] * 3, vocab_size=1000)
        return np.stack([sampler.draw(logits) for _ in range(4)]).T.tolist()

    together = drawn(7)
    assert len({str(row) for row in together}) == 3
    assert drawn(7) == together
    assert drawn(8) != together
    # A row draws the same wherever it stands.
    a, b, c = drawn([(7, 2), (7, 0), (7, 1)])
    assert [b, c, a] == together
    assert drawn([5, 5, 6])[0] == drawn([5, 5, 6])[1] != drawn([5, 5, 6])[2]
    with pytest.raises(ArchcError, match=r"one for each of the 3 prompts \(found 2\)"):
        drawn([1, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_p": -0.1}, r"min_p should be between 0 and 1 \(found -0.1\)"),
        ({"min_p": 1.1}, "min_p should be between 0 and 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty should be above 0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty should be above 0"),
        ({"seed": [1, -1]}, "seed should be 0 or more"),
    ],
)
def test_options_out_of_range_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchcError, match=message):
        Sampling(**options)


def test_draws_follow_the_probabilities_that_transformers_leaves() -> None:
    logits, prompts = logits_and_prompts()
    sampling = Sampling(temperature=1.5, top_k=6, min_p=0.02)
    expected = processed(logits[:1], prompts[:1], sampling)[0]
    generator, count = np.random.default_rng(0), 20_000
    found = np.bincount([draw(logits[0].numpy(), sampling, generator) for _ in range(count)], minlength=SIZE) / count
    # Five standard deviations.
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / count)).all()
