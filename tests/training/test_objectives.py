"""A batch is a function of data, seed, step and row: which ids, which targets, in which order, whoever asks."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import archc
from archc.expansion import expand
from archc.spec.load import load_spec
from archc.training.data.order import Order, Part, split
from archc.training.objectives.batch import IGNORED
from archc.training.objectives.choosing import evaluation_for, objective_for, split_objectives
from tests.training.texts import CAUSAL, EOS, MASK, MASKED, PAIRED, PLAIN, data, ended, masking_tokenizer, options

pytestmark = pytest.mark.torch

TEXTS = ["the first text", "2", "", "a third one, which is somewhat longer than the others", "last"]


def causal(folder, texts=TEXTS, spec=CAUSAL, **more):
    return objective_for(expand(spec), spec, data(folder, spec, texts), options(**more))


def all_rows(objective, steps, first=1):
    """(inputs, targets) of each row of some steps, lists."""
    found = [objective.batch(step, range(objective.batch_size)) for step in range(first, first + steps)]
    return [
        (ids.tolist(), targets.tolist())
        for batch in found
        for ids, targets in zip(batch.inputs["input_ids"], batch.targets, strict=True)
    ]


def packed_twin(texts, seq_len):
    """All rows by slicing lists: ids of all documents in a row; what begins a document is no target."""
    ids = [number for text in texts if text for number in ended(text)]
    begins = {sum(len(ended(text)) for text in texts[:at] if text) for at in range(len(texts))}
    rows = []
    for start in range(0, len(ids) - seq_len, seq_len):
        after = range(start + 1, start + seq_len + 1)
        rows.append((ids[start : start + seq_len], [IGNORED if at in begins else ids[at] for at in after]))
    return rows


def documents_twin(texts, seq_len):
    rows = []
    for text in texts:
        ids = ended(text) if text else []
        for start in range(0, len(ids) - 1, seq_len):
            inputs, targets = ids[start : start + seq_len], ids[start + 1 : start + seq_len + 1]
            inputs = inputs[: len(targets)]
            fill = seq_len - len(targets)
            rows.append((inputs + [EOS] * fill, targets + [IGNORED] * fill))
    return rows


TWINS = {"packed": packed_twin, "documents": documents_twin}


@pytest.mark.parametrize("packing", TWINS)
@pytest.mark.parametrize("seq_len", [1, 3, 8, 13])
def test_an_epoch_has_each_row_of_the_texts_once(tmp_path, packing, seq_len):
    expected = TWINS[packing](TEXTS, seq_len)
    found = all_rows(causal(tmp_path, packing=packing, seq_len=seq_len, batch_size=1), len(expected))
    assert sorted(found) == sorted(expected)
    assert found != expected or len(expected) < 3


def test_targets_that_lie_in_another_document_are_masked_and_no_others(tmp_path):
    rows = all_rows(causal(tmp_path, ["ab", "cd", "efg"], seq_len=8, batch_size=1), 1)
    a, c, e = b"ace"
    assert rows == [
        ([a, a + 1, EOS, c, c + 1, EOS, e, e + 1], [a + 1, EOS, IGNORED, c + 1, EOS, IGNORED, e + 1, e + 2])
    ]


@pytest.mark.parametrize("packing", TWINS)
def test_targets_of_a_step_are_counted_without_making_it(tmp_path, packing):
    objective = causal(tmp_path, packing=packing, seq_len=5, batch_size=3)
    for step in range(1, 12):
        batch = objective.batch(step, range(3))
        assert objective.targets(step) == int((batch.targets != IGNORED).sum())


@pytest.mark.parametrize("packing", TWINS)
def test_any_world_asks_for_the_same_rows(tmp_path, packing):
    objective = causal(tmp_path, packing=packing, seq_len=4, batch_size=6)
    for step in (5, 1, 3):
        whole = objective.batch(step, range(6))
        assert len(whole) == 6
        for size in (1, 2, 3):
            for start in range(0, 6, size):
                part = objective.batch(step, range(start, start + size))
                assert torch.equal(part.targets, whole.targets[start : start + size])
                assert torch.equal(part.inputs["input_ids"], whole.inputs["input_ids"][start : start + size])
                again = whole.rows(start, start + size)
                assert torch.equal(again.inputs["input_ids"], part.inputs["input_ids"])


def test_tensors_are_int64_of_fixed_shape(tmp_path):
    batch = causal(tmp_path, seq_len=6, batch_size=3).batch(1, range(3))
    for tensor in (batch.inputs["input_ids"], batch.targets):
        assert tensor.shape == (3, 6)
        assert tensor.dtype == torch.int64


def test_each_epoch_and_each_seed_has_an_order_of_its_own():
    def epoch(seed, number):
        return Order(Part(1000), seed).numbers(number * 1000, (number + 1) * 1000).tolist()

    found = [tuple(epoch(seed, number)) for seed in (0, 1, 7) for number in range(3)]
    assert all(sorted(each) == list(range(1000)) for each in found)
    assert len(set(found)) == len(found)
    assert epoch(1, 1) == epoch(1, 1)


def test_rows_may_be_asked_for_at_random_across_epochs():
    order = Order(Part(17), 3)
    whole = order.numbers(0, 170).tolist()
    assert Order(Part(17), 3).numbers(120, 140).tolist() == whole[120:140]
    assert [order.numbers(at, at + 1).item() for at in (169, 0, 50)] == [whole[169], whole[0], whole[50]]


@pytest.mark.parametrize(("total", "fraction"), [(2, 0.5), (2, 0.01), (10, 0.1), (1000, 0.013), (97, 0.5), (50, 0.99)])
def test_what_is_held_out_is_never_learned_and_nothing_is_lost(total, fraction):
    learned, held = split(total, fraction)
    parts = [part.numbers(np.arange(len(part))).tolist() for part in (learned, held)]
    assert sorted(parts[0] + parts[1]) == list(range(total))
    assert len(held) == min(max(1, round(total * fraction)), total - 1)
    # Evenly through the data: no two gaps differ by more than one.
    gaps = [after - before for before, after in pairwise(parts[1])]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_held_out_rows_are_the_same_for_every_seed_and_read_in_order(tmp_path):
    tokens = data(tmp_path, CAUSAL, TEXTS)
    graph = expand(CAUSAL)
    expected = packed_twin(TEXTS, 4)
    kept = []
    for seed in (0, 1):
        asked = options(seq_len=4, batch_size=2, seed=seed)
        learned, held = split_objectives(graph, CAUSAL, tokens, asked, held_out=0.2)
        rows = all_rows(held, held.batches)[: len(held.order)]
        kept.append(rows)
        others = all_rows(learned, -(-len(learned.order) // 2))[: len(learned.order)]
        assert sorted(rows + others) == sorted(expected)
        assert rows == [row for row in expected if row in rows]
    assert kept[0] == kept[1]


def test_an_evaluation_ends_with_rows_that_have_no_targets(tmp_path):
    tokens = data(tmp_path, CAUSAL, TEXTS)
    objective = evaluation_for(expand(CAUSAL), CAUSAL, tokens, options(seq_len=4, batch_size=7))
    expected = packed_twin(TEXTS, 4)
    assert len(expected) % 7
    assert all_rows(objective, objective.batches)[: len(expected)] == expected
    batch = objective.batch(objective.batches, range(7))
    assert (batch.targets[len(expected) % 7 :] == IGNORED).all()
    assert sum(objective.targets(step) for step in range(1, objective.batches + 1)) == sum(
        target != IGNORED for _, targets in expected for target in targets
    )
    assert objective.targets(objective.batches + 1) == 0


def test_epochs_are_counted(tmp_path):
    objective = causal(tmp_path, seq_len=4, batch_size=3)
    assert len(objective.order) == len(packed_twin(TEXTS, 4))
    assert objective.epoch(len(objective.order)) == 3


def masked(folder, texts, **more):
    return objective_for(
        expand(MASKED), MASKED, data(folder, MASKED, texts, tokenizer=masking_tokenizer()), options(**more)
    )


def test_masked_rows_show_four_fifths_as_masks_a_tenth_as_others_and_a_tenth_as_they_are(tmp_path):
    text = "".join(chr(97 + number % 26) for number in range(64 * 500))
    objective = masked(tmp_path, [text], seq_len=64, batch_size=500)
    batch = objective.batch(1, range(500))
    ids, targets = batch.inputs["input_ids"].numpy(), batch.targets.numpy()
    chosen = targets != IGNORED
    # Fifteen in a hundred of each row.
    assert (chosen.sum(1) == round(0.15 * 64)).all()
    assert objective.targets(1) == chosen.sum()
    shown, true = ids[chosen], targets[chosen]
    count = len(true)
    # A random id is the true one once in 298, which shows as kept.
    shares = {"mask": (shown == MASK).mean(), "kept": (shown == true).mean()}
    shares["other"] = 1 - shares["mask"] - shares["kept"]
    for name, expected in (("mask", 0.8), ("kept", 0.1), ("other", 0.1)):
        assert abs(shares[name] - expected) < 4 * (expected * (1 - expected) / count) ** 0.5, name
    others = shown[(shown != MASK) & (shown != true)]
    assert not {EOS, MASK} & set(others.tolist())
    assert len(set(others.tolist())) > 100
    # Where nothing is predicted the text stands as it is, and together with targets it is the text.
    whole = np.where(chosen, targets, ids)
    order = objective.order.numbers(0, 500)
    for row, number in zip(whole, order, strict=True):
        assert row.tolist() == list(text.encode())[number * 64 : number * 64 + 64]


def test_every_place_of_a_row_is_chosen_alike(tmp_path):
    objective = masked(tmp_path, ["a" * 32 * 400], seq_len=32, batch_size=400)
    share = (objective.batch(1, range(400)).targets != IGNORED).float().mean(0)
    expected = round(0.15 * 32) / 32
    assert (share - expected).abs().max() < 5 * (expected * (1 - expected) / 400) ** 0.5


def test_special_tokens_are_never_chosen_and_a_row_of_few_tokens_has_one_target(tmp_path):
    objective = masked(tmp_path, ["a", "b", "c"], seq_len=8, batch_size=3, packing="documents")
    batch = objective.batch(1, range(3))
    ids, targets = batch.inputs["input_ids"], batch.targets
    assert sorted(targets[:, 0].tolist()) == [97, 98, 99]
    assert (targets[:, 1:] == IGNORED).all()
    assert (ids[:, 1] == EOS).all()
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]] * 3
    assert objective.targets(1) == 3


def test_masks_differ_from_step_to_step_and_not_from_world_to_world(tmp_path):
    objective = masked(tmp_path, ["abcdefgh" * 8], seq_len=64, batch_size=4)
    first, second = (objective.batch(step, range(4)) for step in (1, 2))
    assert not torch.equal(first.targets, second.targets)
    assert not torch.equal(first.targets[0], first.targets[1])
    for row in range(4):
        alone = objective.batch(1, range(row, row + 1))
        assert torch.equal(alone.targets[0], first.targets[row])
        assert torch.equal(alone.inputs["input_ids"][0], first.inputs["input_ids"][row])


def test_pairs_become_a_source_with_its_mask_and_a_target_behind_the_start(tmp_path):
    tokens = data(tmp_path, PAIRED, [("ab", "xyz"), ("abcdefgh", "w"), ("c", "uvwxyz")])
    objective = evaluation_for(expand(PAIRED), PAIRED, tokens, options(seq_len=5, batch_size=3), source_len=4)
    batch = objective.batch(1, range(3))
    a, u, w, x = (ord(letter) + 2 for letter in "auwx")
    # As archc generate hands over a prompt: this tokenizer puts nothing around it.
    assert batch.inputs["encoder_input_ids"].tolist() == [[a, a + 1, 0, 0], [a, a + 1, a + 2, a + 3], [a + 2, 0, 0, 0]]
    assert batch.inputs["encoder_attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert batch.inputs["input_ids"].tolist() == [[0, x, x + 1, x + 2, 0], [0, w, 0, 0, 0], [0, u, u + 1, u + 2, u + 3]]
    assert batch.targets.tolist() == [
        [x, x + 1, x + 2, 1, IGNORED],
        [w, 1, IGNORED, IGNORED, IGNORED],
        [u, u + 1, u + 2, u + 3, u + 4],
    ]
    assert objective.targets(1) == 4 + 2 + 5


def test_a_source_has_what_its_tokenizer_puts_around_a_prompt_and_keeps_its_end_when_cut(tmp_path):
    from tokenizers.processors import TemplateProcessing

    tokenizer = PAIRED.tokenizer.load(".")
    tokenizer.post_processor = TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    tokens = data(tmp_path, PAIRED, [("abcdef", "x")], tokenizer=tokenizer)
    long, short = (
        objective_for(expand(PAIRED), PAIRED, tokens, options(seq_len=8, batch_size=1), source_len=length)
        .batch(1, range(1))
        .inputs["encoder_input_ids"]
        .tolist()
        for length in (8, 3)
    )
    assert long == [[99, 100, 101, 102, 103, 104, 1, 0]]
    assert short == [[99, 100, 1]]
    # A target ends once, by the spec.
    assert tokens.read(7, 9).tolist() == [ord("x") + 2, 1]


def test_a_prefix_is_no_target_and_the_rest_is(tmp_path):
    spec = load_spec("tiny-llama", ["tokenizer={kind: bytes}", "stack.num_layers=1", "stack.mask=prefix"])
    tokens = data(tmp_path, spec, ["abcdefghijklmnopqrstuvwxyz" * 40])
    objective = objective_for(expand(spec), spec, tokens, options(seq_len=16, batch_size=60))
    batch = objective.batch(1, range(60))
    lengths = batch.inputs["prefix_length"]
    assert set(lengths.tolist()) == set(range(1, 17))
    for ids, targets, length in zip(batch.inputs["input_ids"], batch.targets, lengths, strict=True):
        assert (targets[: length - 1] == IGNORED).all()
        assert torch.equal(targets[length - 1 : -1], ids[length:])
    assert objective.targets(1) == int((batch.targets != IGNORED).sum()) == int((17 - lengths).sum())


@pytest.mark.parametrize("name", ["causal", "prefix", "masked", "pairs"])
def test_a_model_takes_its_batch_and_its_loss_is_a_number(tmp_path, name):
    prefix = load_spec("tiny-llama", ["tokenizer={kind: bytes}", "stack.num_layers=1", "stack.mask=prefix"])
    spec = {"causal": PLAIN, "prefix": prefix, "masked": MASKED, "pairs": PAIRED}[name]
    texts = [("ab", "xyz"), ("abc", "w")] if name == "pairs" else ["some text to learn from"]
    tokenizer = masking_tokenizer() if name == "masked" else None
    tokens = data(tmp_path, spec, texts, tokenizer=tokenizer)
    # The rows behind the end of an evaluation, which have no targets, must spoil nothing either.
    objective = evaluation_for(expand(spec), spec, tokens, options(seq_len=8, batch_size=5))
    batch = objective.batch(1, range(5))
    assert (batch.targets[-1] == IGNORED).all()
    model = archc.build(spec, device="cpu", seed=0)
    logits = model(**batch.inputs)
    assert logits.shape[:2] == batch.targets.shape
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    loss.backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)
