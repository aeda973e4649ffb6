"""The generated tasks: each question has the answer that an independent rule gives, and words alone give none."""

import numpy as np
import pytest
import torch
from common import SCHEMES, perturb

from hf_posenc import PosEncConfig, PosEncForSequenceClassification
from hf_posenc.comparison import PROBES, make_halves, make_probes
from hf_posenc.comparison.probes import make_tokenizer
from hf_posenc.training import UserError

LENGTHS = ((32, 32), (33, 33), (32, 64), (512, 512))


def pairs_of(rows):
    groups = {}
    for row in rows:
        groups.setdefault(row["group"], {})[row["label"]] = row["text"].split()
    return groups


def is_nested(words):
    text = "".join(word for word in words if word in "()[]")
    while (shorter := text.replace("()", "").replace("[]", "")) != text:
        text = shorter
    return not text


# The input's positions: [CLS] is 0, the probe's own word 1. So the n-th word of the text is at n + 1.
RULES = {
    "order": lambda words: words.index("A") < words.index("B"),
    "ends": lambda words: words[1] == words[-1],
    "place": lambda words: words[int(words[1][1:]) - 1] == "A",
    "distance": lambda words: abs(words.index("A") - words.index("B")) <= 4,
    "swap": lambda words: all(words[i + 1 : i + 2] == ["A"] for i, word in enumerate(words) if word == "B"),
    "parity": lambda words: (words.index("A") + 1) % 2 == 0,
    "brackets": is_nested,
}


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
        assert group["yes"][0] == group["no"][0] == PROBES[name].token
        assert lengths[0] <= len(group["yes"]) + 2 <= lengths[1]


def test_every_probe_has_a_rule_and_says_what_it_needs():
    assert set(RULES) == set(PROBES)
    for probe in PROBES.values():
        assert set(probe.needs) <= {"absolute", "relative", "direction", "nesting"}
        assert probe.needs
        assert probe.question.endswith("?")


def test_far_marks_are_far_and_named_places_are_met():
    distances = [
        abs(group["no"].index("A") - group["no"].index("B"))
        for group in pairs_of(make_probes(200, (64, 64), 0, ["distance"])).values()
    ]
    assert (min(distances), max(distances)) == (8, 12)
    asked = {row["text"].split()[1] for row in make_probes(100, (32, 32), 0, ["place"])}
    assert asked == {"#4", "#8", "#16", "#24"}


def test_swapped_neighbours_stand_at_even_and_odd_places():
    """Else the parity of their place would answer, and no neighbourhood were needed."""
    places = [row["text"].split().index("A") % 2 for row in make_probes(200, (64, 64), 0, ["swap"])]
    assert 0.4 < sum(places) / len(places) < 0.6


def best_threshold(values, answers):
    """The share of right answers of the best rule that compares one number with a threshold."""
    right = [np.mean((np.array(values) > limit) == answers) for limit in set(values)]
    return max(*right, *(1 - share for share in right))


@pytest.mark.parametrize(
    ("name", "shortcut", "most"),
    [
        ("distance", lambda words: min(words.index("A"), words.index("B")), 0.64),
        ("distance", lambda words: max(words.index("A"), words.index("B")), 0.64),
        ("distance", lambda words: words.index("A"), 0.58),
        ("swap", lambda words: words.index("A"), 0.56),
        ("place", lambda words: words.index("A"), 0.72),
        ("parity", lambda words: words.index("A"), 0.56),
    ],
)
def test_no_shorter_way_leads_to_the_answer(name, shortcut, most):
    """At the shortest length, where such ways are best: the place of one mark, or which mark comes first."""
    rows = list(make_probes(3000, (32, 32), 0, [name]))
    values = [shortcut(row["text"].split()) for row in rows]
    assert best_threshold(values, [row["label"] == "yes" for row in rows]) < most


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
def logits_of_pairs(scheme, name):
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = PosEncConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        position_embedding_type=scheme,
        position_embedding_kwargs={"sliding_window": 2} if scheme == "window" else None,  # narrower than the texts
        classifier_pooling="cls",
        max_position_embeddings=64,
    )
    model = perturb(PosEncForSequenceClassification(config)).eval()
    answers = []
    for group in pairs_of(make_probes(30, (32, 64), 0, [name])).values():
        batch = tokenizer([" ".join(group[label]) for label in ("yes", "no")], return_tensors="pt", padding=True)
        answers.append(model(**batch).logits)
    return torch.stack(answers)  # (pairs, 2, 2)


@pytest.mark.parametrize("name", PROBES)
def test_without_positions_exactly_one_half_is_right(name):
    answers = logits_of_pairs("none", name).argmax(-1)
    assert ((answers[:, 0] == 1).int() + (answers[:, 1] == 0).int()).tolist() == [1] * 30


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "none"])
def test_with_positions_pairs_differ(scheme):
    logits = logits_of_pairs(scheme, "order")
    assert (logits[:, 0] - logits[:, 1]).abs().amax() > 1e-4


def test_counting_words_answers_the_control():
    rows = list(make_halves(100, (32, 64), 0))
    assert sum(row["label"] == "yes" for row in rows) == 50
    for row in rows:
        words = row["text"].split()
        first = sum(word.startswith("u") for word in words)
        assert (first > len(words) - first) == (row["label"] == "yes")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: list(make_probes(1, (31, 64), 0)), "31 to 64 tokens can't be made: they need 32"),
        (lambda: list(make_probes(1, (64, 32), 0)), "64 to 32 tokens"),
        (lambda: list(make_probes(0, (32, 32), 0)), "pairs=0"),
        (lambda: list(make_probes(1, (32, 32), 0, ["odrer"])), "'odrer' is unknown. Choose from order"),
        (lambda: list(make_halves(1, (32, 32), 0)), "1 examples"),
        (lambda: list(make_halves(10, (4, 8), 0)), "4 to 8 tokens"),
    ],
)
def test_what_cannot_be_generated_is_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()
