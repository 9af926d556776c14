"""archc's torch models give the logits of transformers, however the tokens are fed."""

import re

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

import archc  # noqa: E402
from archc.expansion import expand  # noqa: E402
from tests.parity.weights import to_archc  # noqa: E402

pytestmark = pytest.mark.torch

MAX_MODEL_LEN = 32
"""As many as the longest row has, so that an access beyond the last token's row is an error."""
PADDING_ID = 91
"""An id that no row contains, so that padding which leaks into a result is a stranger."""

PIECES = {
    "token by token": [1] * 32,
    "a prefill, then single tokens": [24, *[1] * 8],
    "pieces that shrink": [16, 8, 5, 3],
    "pieces longer than the window over a ring that is partly full": [3, 12, 9, 8],
}
RAGGED = {
    "prefill, a piece, single tokens": [[20, 13], [6, 3], *[[1, 1]] * 6],
    "rows that overtake each other": [[1, 5], [11, 2], [3, 14], *[[1, 1]] * 3],
    "rows that wait": [[9, 13], [0, 3], [7, 0], *[[1, 1], [0, 1], [1, 0]] * 3],
    "a row that joins later": [[9, 0], [1, 13], [1, 1], [4, 2]],
    "rows that happen to be alike": [[16, 16], [5, 5], *[[1, 1]] * 3],
}

_models = {}


@pytest.fixture
def model(oracle, family, tmp_path):
    """The archc model with the oracle's weights; one a family and process, and nothing may change it for good."""
    if family.name not in _models:
        _models[family.name] = built(family.spec, oracle, tmp_path)
    with torch.no_grad():
        yield _models[family.name]


def built(spec_text, oracle, folder, **options):
    """A model of the spec with the oracle's weights, through a file, as published weights come."""
    spec = archc.loads_spec(spec_text)
    shapes = {name: param.shape for name, param in expand(spec).params().items()}
    mapped = to_archc(oracle.state(), shapes, family=oracle.family.name, tied=oracle.tied())
    save_file(mapped, folder / "model.safetensors")
    model = archc.build(spec, device="cpu", **options)
    return archc.load_weights(model, folder / "model.safetensors").eval()


def assert_same(got, expected, family):
    torch.testing.assert_close(got, expected, rtol=0, atol=family.tolerance)


def in_pieces(model, ids, lengths, **options):
    """Logits of each piece; all rows hold the same number of tokens."""
    cache = archc.new_cache(model, batch=len(ids), max_model_len=MAX_MODEL_LEN)
    past = 0
    for length in lengths:
        step = archc.Step.at(past=past, seq=length)
        yield model(ids[:, past : past + length], step=step, cache=cache, **options)
        past += length


def in_ragged_pieces(model, ids, plan, **options):
    """The rows of each piece of a plan, over one cache."""
    cache = archc.new_cache(model, batch=len(ids), max_model_len=MAX_MODEL_LEN)
    past = [0] * len(ids)
    for new in plan:
        yield from one_ragged_piece(model, ids, past, new, cache, **options)
        past = [held + length for held, length in zip(past, new, strict=True)]


def one_ragged_piece(model, ids, past, new, cache, **options):
    """(row, its past, its new tokens, its logits); rows are padded on the right."""
    seq = max(new)
    padded = torch.full((len(ids), seq), PADDING_ID)
    for row, (start, length) in enumerate(zip(past, new, strict=True)):
        padded[row, :length] = ids[row, start : start + length]
    step = archc.Step.ragged(past=torch.tensor(past), new=torch.tensor(new), seq=seq)
    logits = model(padded, step=step, cache=cache, **options)
    assert torch.isfinite(logits).all()
    return [(row, start, length, logits[row]) for row, (start, length) in enumerate(zip(past, new, strict=True))]


def test_a_whole_prefill_gives_the_same_logits(model, oracle, family):
    assert_same(model(oracle.ids), oracle.logits, family)


def test_a_whole_prefill_over_a_cache_gives_the_same_logits(model, oracle, family):
    (logits,) = in_pieces(model, oracle.ids, [oracle.ids.shape[1]])
    assert_same(logits, oracle.logits, family)


@pytest.mark.parametrize("lengths", PIECES.values(), ids=PIECES)
def test_tokens_fed_in_pieces_give_the_same_logits(model, oracle, family, lengths):
    assert_same(torch.cat(list(in_pieces(model, oracle.ids, lengths)), 1), oracle.logits, family)


@pytest.mark.parametrize("plan", RAGGED.values(), ids=RAGGED)
def test_rows_of_different_lengths_give_the_logits_of_each_row_alone(model, oracle, family, plan):
    alone = [
        oracle.forward(oracle.ids[row : row + 1, : sum(new)])[0] for row, new in enumerate(zip(*plan, strict=True))
    ]
    for row, past, new, logits in in_ragged_pieces(model, oracle.ids, plan):
        assert_same(logits[:new], alone[row][past : past + new], family)


def test_uniform_and_ragged_steps_may_follow_each_other_over_one_cache(model, oracle, family):
    cache = archc.new_cache(model, batch=2, max_model_len=MAX_MODEL_LEN)
    ids, expected = oracle.ids, oracle.logits
    assert_same(model(ids[:, :16], step=archc.Step.at(past=0, seq=16), cache=cache), expected[:, :16], family)
    for past, new in (([16, 16], [5, 2]), ([21, 18], [1, 1]), ([22, 19], [0, 3])):
        for row, start, length, logits in one_ragged_piece(model, ids, past, new, cache):
            assert_same(logits[:length], expected[row, start : start + length], family)
    assert_same(model(ids[:, 22:26], step=archc.Step.at(past=22, seq=4), cache=cache), expected[:, 22:26], family)
    assert_same(model(ids[:, 26:27], step=archc.Step.at(past=26, seq=1), cache=cache), expected[:, 26:27], family)


def test_only_the_last_logits_are_those_of_each_rows_last_token(model, oracle, family):
    ends = []
    for logits in in_pieces(model, oracle.ids, [16, 8], last_only=True):
        assert logits.shape[1] == 1
        ends.append(logits)
    assert_same(torch.cat(ends, 1), oracle.logits[:, [15, 23]], family)
    for row, past, new, logits in in_ragged_pieces(model, oracle.ids, [[20, 13], [6, 3], [1, 1]], last_only=True):
        assert_same(logits, oracle.logits[row, past + new - 1 : past + new], family)


def test_either_half_of_any_weight_moves_the_logits(model, oracle, family):
    # A weight that parity cannot see could be dropped or swapped without a test that fails.
    draw = torch.Generator().manual_seed(99)
    unmoved, hidden = {}, set()
    before = model(oracle.ids)
    for name, weight in one_of_each_role(model.state_dict(keep_vars=True)).items():
        kept, middle = weight.detach().clone(), weight.shape[0] // 2
        halves = (slice(None, middle), slice(middle, None))
        for half in halves if middle else halves[1:]:
            if weight.is_floating_point():
                weight[half] += 0.5 * torch.randn(weight[half].shape, generator=draw)
            else:
                weight[half] = weight[half].roll(1, 0)
            change = float((model(oracle.ids) - before).abs().max())
            weight.copy_(kept)
            if any(re.fullmatch(pattern, name) for pattern in family.unseen):
                hidden.add(name)
                assert change < family.tolerance, f"{name} is said to be cancelled by the softmax"
            elif not change > 10 * family.tolerance:
                unmoved[f"{name}[{half.start or ''}:{half.stop or ''}]"] = change
    assert not unmoved
    assert bool(hidden) == bool(family.unseen)
    assert torch.equal(model(oracle.ids), before)


def test_cached_keys_are_those_of_transformers_where_no_logit_shows_them(model, oracle, family):
    if not family.unseen:
        pytest.skip("every weight of this family moves the logits")
    cache = archc.new_cache(model, batch=len(oracle.ids), max_model_len=MAX_MODEL_LEN)
    model(oracle.ids, step=archc.Step.at(past=0, seq=oracle.ids.shape[1]), cache=cache)
    for layer, keys in enumerate(oracle.cached_keys()):
        assert_same(cache[f"layers.{layer}.mixer.attention.key"][:, :, : keys.shape[2]], keys, family)


def one_of_each_role(weights):
    """The weight of each role that is deepest in the model: what it changes reaches the logits by the fewest ways."""
    deepest = {}
    for name, weight in weights.items():
        deepest[re.sub(r"layers\.\d+", "layers.N", name)] = (name, weight)
    return dict(deepest.values())


def test_every_number_and_choice_of_the_spec_moves_the_logits(model, oracle, family, tmp_path):
    # What the tiny model does not exercise is not tested by it, however well the logits agree.
    unmoved = []
    for text, other in family.twists:
        assert family.spec.count(text) == 1, text
        twisted = built(family.spec.replace(text, other), oracle, tmp_path)
        if not float((twisted(oracle.ids) - oracle.logits).abs().max()) > 10 * family.tolerance:
            unmoved.append((text, other))
    assert not unmoved


@pytest.mark.parametrize("pairs", ["needed", "dense"])
def test_the_readable_twins_give_the_same_logits(oracle, family, tmp_path, pairs):
    twin = built(family.spec, oracle, tmp_path, twin=pairs)
    with torch.no_grad():
        assert_same(twin(oracle.ids), oracle.logits, family)
        assert_same(torch.cat(list(in_pieces(twin, oracle.ids, [16, 8, 5, 1, 1, 1])), 1), oracle.logits, family)
