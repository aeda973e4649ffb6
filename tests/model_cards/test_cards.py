"""Every scheme has a card that says what the code and the results say; the answers on which scheme when hold."""

import json
import os
import re
from statistics import fmean

import pandas as pd
import pytest
from huggingface_hub import ModelCard

from hf_posenc.comparison import read_plan
from hf_posenc.comparison.statistics import Contrast, Interval, welch
from hf_posenc.data.sources import read
from hf_posenc.options import Options
from model_cards import make_cards, make_pages
from model_cards.studies.pretraining_plan import CONTRASTS
from tests.support.common import BUILTIN, UNMEASURED

FOLDER = make_cards.FOLDER
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def card(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")  # `make model-cards` starts one


@pytest.fixture(scope="module")
def compared():
    return make_cards.read_comparisons()


@pytest.mark.parametrize("name", BUILTIN)
def test_every_scheme_has_a_card(name):
    text = card(name)
    assert make_cards.UNWRITTEN not in text, f"model_cards/{name}.md: say when to choose the scheme, and when not."
    data = ModelCard(text).data
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "transformers", "text-classification")
    assert ("No committed comparison has it" in text) == (name in UNMEASURED)
    (who, number), *_ = make_cards.papers(make_cards.SCHEMES[name])
    citation = text.partition("```bibtex")[2]
    assert who.split()[0] in citation
    assert f"eprint = {{{number}}}" in citation or not number


def test_the_folder_holds_cards_pictures_and_a_short_page_of_all():
    assert {path.stem for path in FOLDER.glob("*.md") if "## When to choose it" in path.read_text()} == set(BUILTIN)
    drawn = {path.stem for path in (FOLDER / "pictures").iterdir()}
    assert drawn == {name for name in BUILTIN if f"](pictures/{name}.png)" in card(name)} == set(BUILTIN) - {"none"}
    assert len(PAGE.splitlines()) <= 120
    prose = re.sub(r"```.*?```|<!-- generated.*?<!-- end -->|\]\([^)]*\)", "", PAGE, flags=re.DOTALL)
    assert max(len(sentence.split()) for sentence in re.split(r"[.:](?=\s)|\||\n\n|\n- ", prose)) <= 30
    in_space = (FOLDER.parent / "examples/space/results.md").read_text(encoding="utf-8")
    assert in_space == make_pages.space_results(FOLDER)
    for report in FOLDER.glob("results/*/report.md"):
        assert f" ({report.parent.name})\n" in in_space
        assert f"](results/{report.parent.name}/report.md)" in (FOLDER / "evidence.md").read_text()


def test_the_citation_names_the_version_of_the_tables():
    (version,) = re.findall(r"^Version (\S+) of the tables", (FOLDER / "evidence.md").read_text(), re.MULTILINE)
    assert f'version: "{version}"' in (FOLDER.parent / "CITATION.cff").read_text()


@pytest.mark.slow  # every card
def test_cards_say_what_the_code_and_the_results_say(compared):
    for row in make_cards.describe_schemes():
        if row.name in BUILTIN:
            assert make_cards.render_card(FOLDER, row, compared) == card(row.name), "run `make model-cards`"


@pytest.mark.parametrize(
    ("ends", "margin", "said"),
    [
        ((0.01, 0.02), None, "better than `rope` (+0.015)"),
        ((-0.02, -0.01), 0.03, "worse than `rope` (-0.015), within 0.03 of it"),
        ((-0.02, 0.01), 0.03, "within 0.03 of `rope` (-0.005)"),
        ((-0.02, 0.01), None, "not decided against `rope` (-0.005)"),
    ],
)
def test_a_card_says_a_difference_in_words(ends, margin, said):
    found = Interval(fmean(ends), *ends)
    corrected = 0.01 if min(ends) * max(ends) > 0 else 1.0
    contrast = Contrast("words", 64, "t5", "rope", found, corrected, corrected, margin)
    assert make_cards._verdict(contrast, margin) == said


@pytest.mark.skipif("HF_POSENC_DATA" not in os.environ, reason="HF_POSENC_DATA names no data sets")
def test_what_the_evidence_says_of_texts_that_occur_twice_is_so():
    said = " ".join((FOLDER / "evidence.md").read_text().split())
    repeated = {}
    for task in read_plan("practitioner_3000").tasks:
        rows = read(Options(data=f"{os.environ['HF_POSENC_DATA']}/{task.name}"))
        train = rows["train"].cells("text")
        assert not {*train} & {*rows["test"].cells("text")}, task.name
        repeated[task.name] = len(train[:3000]) - len({*train[:3000]})
    assert {name: count for name, count in repeated.items() if count} == {"sst2": 2, "trec": 23}
    assert "rows of `trec` 23 repeat an earlier text, of `sst2` 2." in said


STATED = {  # case: plan, tasks, scheme, length, part
    "Pretrained weights": [("practitioner_pretrained", ("trec", "subj"), name, 64) for name in ("learned", "none")],
    "From scratch, few": [("practitioner_1000", ("sst2", "trec", "subj"), name, 64) for name in ("pope", "word pairs")],
    "From scratch, many": [("listops", ("listops",), name, 128) for name in ("rope", "none")],
    "Exact places": [("probes", ("probes",), name, 64, "place") for name in ("learned", "rope")],
}


def test_the_answers_of_the_pretraining_study_hold():
    """What its page and "Which scheme when" claim by hand."""
    runs = pd.read_csv(FOLDER / "results" / "pretraining" / "table.csv")
    loss = {scheme: [*of_scheme["loss at 128"]] for scheme, of_scheme in runs.groupby("scheme")}
    (row,) = re.findall(r"^\| Pretraining of your own.*", PAGE, re.MULTILINE)
    assert all(f"{fmean(loss[scheme]):.3f}" in row for scheme in ("rope+t5", "t5", "rope"))
    against = {name: welch([losses], [loss["rope"]], 0.05 / CONTRASTS)[0] for name, losses in loss.items()}
    assert [name for name, found in against.items() if found.high < -0.05] == ["deberta", "rope+t5", "t5"]
    assert [name for name, found in against.items() if found.low < 0 < found.high] == ["alibi", "pope", "rope"]
    tuned = {scheme: [*of_scheme["fine-tuned"]] for scheme, of_scheme in runs.groupby("scheme")}
    against = {name: welch([scores], [tuned["rope"]], 0.05 / CONTRASTS)[0] for name, scores in tuned.items()}
    assert [name for name, found in against.items() if found.high < 0] == ["learned", "none", "sinusoidal"]
    assert not any(found.low > 0 for found in against.values())
    within = [name for name, found in against.items() if found.low > -0.02 and found.high < 0.02]
    assert within == ["deberta", "rope", "t5"]
    linear = json.loads((FOLDER / "results" / "pretraining" / "baselines.json").read_text())["linear"]
    pairs = {task: scores["word_pairs"] for task, scores in linear.items()}
    text = (FOLDER / "pretraining.md").read_text()
    assert f"whose mean is {fmean(tuned['rope']):.3f}".replace("0.", ".") in text
    assert f"word pairs\nhave {fmean(pairs.values()):.3f}".replace("0.", ".") in text
    mean_of_rope, mean_of_pairs = (f"{fmean(values):.3f}"[1:] for values in (tuned["rope"], pairs.values()))
    assert f"(`rope` {mean_of_rope}, word pairs {mean_of_pairs}; in " in (FOLDER.parent / "README.md").read_text()
    assert abs(fmean(tuned["rope"]) - fmean(pairs.values())) < 0.005  # "that of word pairs"
    relative = runs[~runs.scheme.isin(["none", "learned", "sinusoidal"])].groupby("scheme")
    assert (relative["blimp_order"].mean() > pairs["blimp_order"]).all()
    assert (relative[["sst2", "trec"]].mean() < [pairs["sst2"], pairs["trec"]]).all(axis=None)


def test_the_answers_hold(compared):
    """What "Which scheme when", cards and guides claim by hand."""

    def mean(plan, tasks, name, length, part=None):
        table = compared[plan].table
        chosen = table if part is None else table[table["part"] == part]
        return fmean(make_cards.group_scores(chosen, tasks, name, length).values() or [-1])

    def verdicts(plan, reference, length=64):
        chosen = [c for c in compared[plan].contrasts if (c.reference, c.length) == (reference, length)]
        direction = {True: "better", False: "worse"}
        return {(c.group, c.scheme): direction[c.interval.mean > 0] if c.is_found else "not decided" for c in chosen}

    for case, numbers in STATED.items():
        (row,) = re.findall(rf"^\| {case}.*", PAGE, re.MULTILINE)
        assert all(f"{mean(*where):.3f}" in row for where in numbers)
    tuned = verdicts("practitioner_pretrained", "learned")
    assert [pair for pair, verdict in tuned.items() if verdict in ("better", "worse")] == [("words suffice", "none")]
    assert mean("practitioner_pretrained", ["blimp_order"], "none", 64) == 0.5
    for plan in ("practitioner_1000", "practitioner_3000"):
        for tasks in compared[plan].plan.tested_groups.values():
            best = max(mean(plan, tasks, scheme, 64) for scheme in compared[plan].order)
            assert best < mean(plan, tasks, "word pairs", 64)
    few = [pair for pair, verdict in verdicts("practitioner_1000", "rope").items() if verdict == "better"]
    assert few == [("order decides", "learned"), ("order decides", "lspe")]
    more = [pair for pair, verdict in verdicts("practitioner_3000", "rope").items() if verdict != "not decided"]
    assert more == [("order decides", "deberta"), ("order decides", "dual_triangle")]
    assert "better" not in verdicts("practitioner_3000", "rope").values()
    assert verdicts("listops", "none", 128)["listops", "rope"] == "better"
    many = [scheme for (_, scheme), verdict in verdicts("listops", "rope", 128).items() if verdict == "worse"]
    assert sorted(many) == ["alibi", "fourier", "lspe", "sinusoidal"]
    assert "better" not in verdicts("listops", "rope", 128).values()
    assert verdicts("probes", "rope")["probes", "learned"] == "worse"
