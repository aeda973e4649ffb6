"""The generated tasks: each question has the answer that an independent rule gives, and words alone give none."""

import numpy as np
import pytest
import torch

from hf_posenc import PosEncConfig, PosEncForSequenceClassification
from hf_posenc.comparison.baselines import answer_usual
from hf_posenc.comparison.probes import PROBES, make_halves, make_probes
from hf_posenc.comparison.tasks import TaskData, make_tokenizer
from hf_posenc.training.baselines import fit_words
from tests.support.common import others_slow, perturb
from tests.support.comparison import toy

LENGTHS = ((32, 32), (33, 33), (32, 64), (512, 512))


def pairs_of(rows):
    groups = {}
    for row in rows:
        groups.setdefault(row["group"], {})[row["label"]] = row["text"].split()
    return groups


# The input's positions: [CLS] is 0, the probe's own word 1. So the n-th word of the text is at n + 1.
def is_first(words):
    first, second = {"?A": "AB", "?B": "BA"}[words[1]]
    return words.index(first) < words.index(second)


def is_at(words):
    letter, place = {"#": "A", "!": "B"}[words[1][0]], int(words[1][1:])
    assert words[place - 1] in "AB"
    return words[place - 1] == letter


def has_parity(words):
    return ("?odd", "?even")[(words.index("A") + 1) % 2 == 0] == words[1]


def has_distance(words):
    return ("?far", "?near")[abs(words.index("A") - words.index("B")) <= 4] == words[1]


RULES = {
    "order_near": is_first,
    "order_far": is_first,
    "distance_coarse": has_distance,
    "distance_fine": has_distance,
    "place": is_at,
    "parity": has_parity,
}
FORMS = {
    "order": ({"?A"}, {"?B"}),
    "distance": ({"?near"}, {"?far"}),
    "place": ({"#7", "#12", "#18", "#25"}, {"!7", "!12", "!18", "!25"}),
    "parity": ({"?even"}, {"?odd"}),
}
"""The queries of each kind of probe: the usual ones, and the opposite ones."""
OPPOSITES = set.union(*(opposite for _, opposite in FORMS.values()))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", PROBES)
def test_the_answers_are_right_and_pairs_hold_the_same_words(name, lengths):
    rows = list(make_probes(40, lengths, seed=3, names=[name]))
    assert len(rows) == 80
    for group in pairs_of(rows).values():
        assert set(group) == {"yes", "no"}
        assert RULES[name](group["yes"])
        assert not RULES[name](group["no"])
        assert sorted(group["yes"]) == sorted(group["no"])
        assert group["yes"][0] == group["no"][0] == f"<{name}>"
        assert lengths[0] <= len(group["yes"]) + 2 <= lengths[1]


def distances(name, lengths=(64, 64)):
    rows = make_probes(400, lengths, 0, [name])
    return {abs(words.index("A") - words.index("B")) for words in (row["text"].split() for row in rows)}


def test_levels_differ_in_how_far_the_letters_are_apart():
    assert distances("order_near") == {1, 2, 3}
    assert distances("order_far") == {6, 7, 8, 9, 10}
    assert distances("distance_coarse") == {2, 3, 4, 8, 9, 10, 11, 12}
    assert distances("distance_fine") == {3, 4, 6, 7}
    assert distances("place") == distances("parity") == {1}


@pytest.mark.parametrize("name", PROBES)
def test_tests_ask_both_forms_equally_often_and_training_mostly_the_usual_one(name):
    usual, opposite = FORMS[name.split("_")[0]]
    for training, least, most in ((False, 0.5, 0.5), (True, 0.12, 0.18)):
        rows = make_probes(1000, (32, 64), 0, [name], training=training)
        asked = [row["text"].split()[1:4] for row in rows]
        assert {query for query, *_ in asked} == usual | opposite
        assert least <= np.mean([query in opposite for query, *_ in asked]) <= most
        assert {bar for _, bar, _ in asked} == {"|"}
        assert not {"A", "B"} & {after for *_, after in asked}
    assert opposite <= OPPOSITES


@pytest.mark.parametrize("name", ["distance_coarse", "distance_fine", "place", "parity"])
def test_the_letters_stand_in_both_orders(name):
    rows = make_probes(400, (64, 64), 0, [name])
    assert 0.4 < np.mean([SHORTCUTS["A first"](row["text"].split()) for row in rows]) < 0.6


def places_of(words):
    return words.index("A"), words.index("B")


SHORTCUTS = {
    "place of A": lambda words: places_of(words)[0],
    "place of B from the end": lambda words: len(words) - places_of(words)[1],
    "place of the first": lambda words: min(places_of(words)),
    "place of the last": lambda words: max(places_of(words)),
    "A first": lambda words: places_of(words)[0] < places_of(words)[1],
    "evenness of A": lambda words: places_of(words)[0] % 2,
    "neighbours": lambda words: abs(places_of(words)[0] - places_of(words)[1]) == 1,
    "distance": lambda words: abs(places_of(words)[0] - places_of(words)[1]),
}
"""Numbers of a text; with the query, a model may answer from any of them."""
ANSWERED_BY = {
    "order_near": {"A first"},
    "order_far": {"A first", "place of A", "place of B from the end"},  # .58 at 64 tokens: bounded below
    "distance_coarse": {"distance"},
    "distance_fine": {"distance"},
    "place": {"place of A", "place of B from the end"},
    "parity": {"place of A", "place of B from the end", "evenness of A"},
}
"""What a probe is about, and so may be answered from."""


def answered_from(rows, number):
    """How many answers the best rule on this number and the form of the question has right, on texts of its own."""
    agrees = np.array([(row["label"] == "yes") != (row["words"][1] in OPPOSITES) for row in rows])
    numbers = np.array([number(row["words"]) for row in rows])
    half = len(rows) // 2
    rule = {value: agrees[:half][numbers[:half] == value].mean() > 0.5 for value in set(numbers[:half])}
    return np.mean([rule.get(value, True) for value in numbers[half:]] == agrees[half:])


@pytest.mark.parametrize("name", PROBES)
def test_nothing_but_what_a_probe_is_about_answers_it(name):
    rows = [row | {"words": row["text"].split()} for row in make_probes(6000, (64, 64), 0, [name])]
    for shortcut, number in SHORTCUTS.items():
        share = answered_from(rows, number)
        assert (share > 0.55) == (shortcut in ANSWERED_BY[name]), (shortcut, share)
        if name == "order_far" and shortcut != "A first":
            assert share < 0.62, (shortcut, share)


@pytest.mark.parametrize("name", others_slow(PROBES, "order_near"))
def test_no_linear_model_leads_to_the_answer(name):
    """At the shortest length, where the letters' neighbours and places say most: 3,000 pairs to fit, 1,500 to test."""
    data = []
    for pairs, seed, training in ((3000, 0, True), (1500, 1, False)):
        rows = list(make_probes(pairs, (32, 32), seed, [name], training=training))
        data.append(([[row["text"] for row in rows]], [int(row["label"] == "yes") for row in rows]))
    (train, labels), (test, answers) = data
    for kind in ("words", "word pairs", "words at places"):
        score = np.mean(fit_words(train, labels, kind).predict(test) == answers)
        assert abs(score - 0.5) < 0.05, (kind, score)


@pytest.mark.parametrize("name", PROBES)
def test_the_usual_form_alone_has_three_quarters_right(name):
    rows = list(make_probes(500, (64, 64), 0, [name]))
    right = np.array([row["label"] == "yes" for row in rows]).astype(int)
    answers = answer_usual([row["text"] for row in rows], right, no=0)
    assert np.mean(answers == right) == 0.75
    usual = np.array([row["text"].split()[1] not in OPPOSITES for row in rows])
    assert (answers[usual] == right[usual]).all()
    assert not answers[~usual].any()


def test_words_at_places_are_counted_from_both_ends():
    texts, answers = [], []
    for fillers in range(4, 44):
        for last in (True, False):
            texts.append(" ".join(["f"] * fillers + (["B", "A"] if last else ["A", "B"])))
            answers.append(int(last))
    first = [" ".join(reversed(text.split())) for text in texts]
    for ends in (texts, first):
        model = fit_words([ends[::4] + ends[1::4]], answers[::4] + answers[1::4], "words at places")
        assert (model.predict([ends[2::4] + ends[3::4]]) == answers[2::4] + answers[3::4]).all()


def test_a_run_is_trained_on_mostly_usual_questions():
    plan = toy(train_examples=4000)
    rows = TaskData(plan, plan.tasks[0]).training_rows(plan.runs()[0])
    assert 0.12 < np.mean([text.split()[1] in OPPOSITES for text in rows.cells("text")]) < 0.18


def test_the_same_seed_draws_the_same_and_words_are_all_known():
    first, again, other = (list(make_probes(5, (32, 64), seed)) for seed in (1, 1, 2))
    assert first == again != other
    tokenizer = make_tokenizer()
    for row in (*first, *make_halves(10, (32, 64), 0)):
        ids = tokenizer(row["text"])["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert len(ids) == len(row["text"].split()) + 2
        assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)


@torch.no_grad()
@pytest.mark.parametrize("name", PROBES)
def test_without_positions_exactly_one_half_is_right(name):
    tokenizer = make_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = PosEncConfig(vocab_size=len(tokenizer), position_embedding_type="none", classifier_pooling="cls", **sizes)
    model = perturb(PosEncForSequenceClassification(config)).eval()
    for group in pairs_of(make_probes(30, (32, 64), 0, [name])).values():
        batch = tokenizer([" ".join(group[label]) for label in ("yes", "no")], return_tensors="pt", padding=True)
        yes, no = model(**batch).logits.argmax(-1)
        assert yes == no  # right for one of the two


def test_counting_words_answers_the_control():
    rows = list(make_halves(100, (32, 64), 0))
    assert sum(row["label"] == "yes" for row in rows) == 50
    for row in rows:
        words = row["text"].split()
        first = sum(word.startswith("u") for word in words)
        assert (first > len(words) - first) == (row["label"] == "yes")
