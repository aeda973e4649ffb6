"""Every scheme has a card that says what the code and the measurements say, with pictures of what the code does."""

import dataclasses
import json
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
import yaml
from common import SCHEMES, UNMEASURED
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index
from scipy import stats

from hf_posenc import POSITIONS
from hf_posenc.comparison import read_plan
from hf_posenc.comparison.statistics import UNDECIDED, Difference, Interval
from hf_posenc.schemes.panels import Lines
from model_cards.generate import answers, cards, evidence, practitioner
from model_cards.generate.card_results import Results

FOLDER = Path(__file__).parent.parent / "model_cards"
RUN = "Run `make model-cards` and commit what it writes."


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(FOLDER)


def page(name: str) -> str:
    path = FOLDER / f"{name}.md"
    assert path.is_file(), f"{name} has no page in model_cards. {RUN} Then say in it when to choose the scheme."
    return path.read_text(encoding="utf-8")


def by_hand(text: str) -> str:
    """What a page says between its generated parts."""
    return text.partition("## When to choose it")[2].partition("<!-- generated")[0].strip()


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_has_a_page_with_words_of_its_own(name):
    words = by_hand(page(name))
    assert cards.UNWRITTEN not in words, f"model_cards/{name}.md: say when to choose the scheme, and when not."
    assert 2 <= words.count(". ") + words.count(".\n") + words.endswith(".") <= 6


def test_no_page_has_lost_its_scheme():
    pages = {path.stem for path in FOLDER.glob("*.md") if "<!-- generated: summary -->" in path.read_text()}
    assert pages == set(SCHEMES)


@pytest.mark.slow  # every page
def test_generated_parts_say_what_the_code_says(results):
    for name in SCHEMES:
        page(name)
    for path, text in cards.render_cards(FOLDER, SCHEMES, results).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date. {RUN}"


def test_pages_hold_the_facts():
    learned = page("learned")
    for part in ("393,216", "512 (`max_position_embeddings`)", "| embeddings, once |", "arxiv.org/abs/1810.04805"):
        assert part in learned
    paths = (FOLDER / "results/compare-quickstart/runs").glob("blimp_order-learned-seed*/run.json")
    mean = statistics.mean(json.loads(path.read_text())["tests"][0]["value"] for path in paths)
    assert f"| blimp_order, plan `quickstart` | 64 | 0.500 | 0.898 |  | {mean:.3f} [" in learned
    assert "| acts on | nothing |\n| sees | no order |" in page("none")
    assert "| sees | absolute positions |" in learned
    assert "| sees | distances alone |" in page("alibi")
    assert "\n- `yarn`: pairs that turn" in page("rope")
    assert "| eager, sdpa, FlashAttention |" in page("rope")
    assert "| eager, sdpa; FlashAttention takes no bias |" in page("deberta")
    assert "| `max_distance` | `128` | from here on" in page("t5")
    assert "| `dropout` | `0.0` | dropout on the sum" in page("learned")  # from the docstring of the base class
    assert r"\|" not in page("kerple").split("| argument")[0]  # formulas aren't table cells


def test_the_page_of_all_links_every_scheme_and_the_evidence():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"]({evidence.PAGE_NAME})" in text
    assert "](README.md)" in page("evidence")
    for name in SCHEMES:
        assert f"| [`{name}`]({name}.md) |" in text


@pytest.mark.parametrize("name", SCHEMES)
def test_pictures_show_what_the_scheme_does(name):
    recorded = cards.read_record(FOLDER).get(name)
    data = cards.picture_data(cards.picture_panels(name))
    assert cards.is_fresh(data, recorded), f"The picture of {name} shows something else than the scheme does. {RUN}"
    assert cards.shows(FOLDER, name, [recorded]), f"pictures/{name}.png isn't drawn from data.json. {RUN}"
    assert f"](pictures/{name}.png)" in page(name)


def test_the_sheet_is_drawn_from_the_same_numbers():
    recorded = cards.read_record(FOLDER)
    assert cards.shows(FOLDER, "comparison", [recorded[name] for name in cards.COMPARED]), RUN


@pytest.mark.parametrize("name", SCHEMES)
def test_the_metadata_are_what_the_hub_reads(name):
    text = page(name)
    data = ModelCard(text).data
    if name in UNMEASURED:
        assert data.eval_results is None
        assert "No measurement of it has been committed yet" in text
        return
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "transformers", "text-classification")
    assert {"posenc", name, "custom_code"} <= set(data.tags)
    assert data.model_name == f"posenc-{name}"
    assert set(data.metrics) == {result.metric_type for result in data.eval_results}
    assert set(data.metrics) <= {"accuracy", "matthews_correlation"}
    assert set(data.datasets or []) == {result.dataset_type for result in data.eval_results}
    assert {result.dataset_split for result in data.eval_results} == {None}  # it would name an official one
    written = yaml.safe_load(text.split("---\n")[1])["model-index"]
    assert written == eval_results_to_model_index(data.model_name, data.eval_results)


def test_metadata_name_the_data_that_were_tested_on():
    made = {
        result.dataset_config: (result.dataset_type, result.dataset_name)
        for result in ModelCard(page("rope")).data.eval_results
    }
    assert made["imdb/test_long"][1] == "IMDb reviews of more than 512 words, a sample of the official test part"
    orders = {"blimp_order", "blimp_order_1000", "blimp_order_3000"}
    assert set(made) == {"imdb", "imdb/test_long"} | orders  # the others aren't the Hub's


@pytest.mark.filterwarnings("ignore:Precision loss")  # of differences that are nearly the same in all seeds
def test_the_numbers_are_those_of_the_runs():
    """From the run files alone: the mean over seeds and parts, and a t-test of the differences per seed."""
    scores = {}
    for scheme in ("rope", "none"):
        paths = sorted((FOLDER / "results/compare-probes/runs").glob(f"probes-{scheme}-seed*/run.json"))
        tests = [json.loads(path.read_text())["tests"] for path in paths]
        scores[scheme] = {
            length: [statistics.mean(test["value"] for test in run if test["length"] == length) for run in tests]
            for length in (64, 256)
        }
        assert len(tests) == len(read_plan("probes").seeds)
    text = page("rope")
    for length, (rope, none) in {n: (scores["rope"][n], scores["none"][n]) for n in (64, 256)}.items():
        row = next(
            line for line in text.splitlines() if line.startswith(f"| probes, mean of 6, plan `probes` | {length} |")
        )
        mean, difference = statistics.mean(rope), statistics.mean(rope) - statistics.mean(none)
        assert f"| {mean:.3f} [" in row
        assert f"| {difference:+.3f} [" in row
        p = stats.ttest_rel(rope, none).pvalue  # without the examples' part, and uncorrected: a bound
        assert not row.endswith("| better than `none` |") or p < 0.05
    (listed,) = [result for result in ModelCard(text).data.eval_results if "(quickstart, " in result.metric_name]
    quick = scores_by_seed("quickstart", "blimp_order", "rope", "blimp_order", 64)
    assert listed.metric_value == round(statistics.mean(quick), 4)


def scores_by_seed(plan: str, task: str, scheme: str, part: str, length: int) -> list[float]:
    """From the run files alone."""
    paths = sorted((FOLDER / f"results/compare-{plan}/runs").glob(f"{task}-{scheme}-seed*/run.json"))
    tests = [test for path in paths for test in json.loads(path.read_text())["tests"]]
    return [test["value"] for test in tests if (test["part"], test["length"]) == (part, length) and "value" in test]


def answer(heading: str) -> str:
    (text,) = re.findall(rf"^### {heading}\n(.*?)(?=^###|^<!-- end)", page("README"), flags=re.DOTALL | re.MULTILINE)
    return text


def test_answers_give_the_numbers_of_the_runs():
    assert len(re.findall(r"^### ", page("README"), flags=re.MULTILINE)) == 7
    text = answer("You train a small classifier from scratch")
    assert "**Not decided:** wh" in text
    pairs = json.loads((FOLDER / "results/compare-quickstart/baselines/blimp_order.json").read_text())["baselines"]
    assert f"and {pairs[2]['tests'][0]['value']:.3f} for word pairs" in text
    for scheme in ("rope", "lspe", "learned", "sinusoidal"):
        scores = scores_by_seed("quickstart", "blimp_order", scheme, "blimp_order", 64)
        assert len(scores) == 5
        assert f"`{scheme}` {statistics.mean(scores):.3f}" in text
        assert stats.ttest_1samp(scores, 0.5).pvalue < 0.001

    text = answer("Your texts are longer than those in training")
    assert "**Not decided:** wh" in text
    losses = [
        statistics.mean(scores_by_seed("listops", "listops", scheme, "listops", 128))
        - statistics.mean(scores_by_seed("listops", "listops", scheme, "listops", 1024))
        for scheme in SCHEMES
        if scores_by_seed("listops", "listops", scheme, "listops", 1024)
    ]
    assert f"by {min(losses):.3f} to {max(losses):.3f}" in text

    text = answer(r"Is word order worth anything on your task\?")
    assert f"(`none`, {statistics.mean(scores_by_seed('long', 'imdb', 'none', 'imdb', 256)):.3f};" in text


def holm_by_hand(families: list[dict[str, dict[str, Difference]]]) -> set[tuple[str, str]]:
    """Which differ, by Holm's rule in each family: the k-th smallest p-value of m, times m - k + 1."""
    found = set()
    for family in families:
        p_values = {(name, scheme): value.p for name, values in family.items() for scheme, value in values.items()}
        for rank, pair in enumerate(sorted(p_values, key=p_values.__getitem__)):
            if p_values[pair] * (len(p_values) - rank) >= 0.05:
                break
            found |= {pair}
    return found


@pytest.mark.slow  # reads and tests all results
def test_what_is_found_is_found_among_all_comparisons_of_a_table(results):
    study = results.studies["practitioner"]
    tables = [[task for task in study.tasks if task.train_examples == rows] for rows in (1000, 3000)]
    assert [len(tasks) for tasks in tables] == [6, 6]
    differences = {task.name: study.differences(task, 64) for task in study.tasks}
    found = practitioner.corrected(study, lambda task: differences[task.name])
    decided = {
        (task.name, scheme)
        for task, corrected in found
        for scheme, difference in corrected.items()
        if difference.verdict() != UNDECIDED
    }
    assert decided == holm_by_hand([{task.name: differences[task.name] for task in tasks} for tasks in tables])
    assert decided


@pytest.mark.parametrize(
    ("plan", "bold", "section"),
    [
        ("practitioner_pretrained", "worse", "You fine-tune pretrained weights"),
        pytest.param("practitioner", "better", "You train a small classifier from scratch", marks=pytest.mark.slow),
    ],
)
def test_tables_of_small_data_hold_the_means_of_the_runs(results, plan, bold, section):
    study, text = results.studies[plan], answer(section)
    assert practitioner.score_tables(study, bold) in text
    for task in study.tasks:
        known = json.loads((FOLDER / f"results/compare-{plan}/baselines/{task.name}.json").read_text())["baselines"]
        means = [baseline["tests"][0]["value"] for baseline in known[:3]]
        means += [statistics.mean(scores_by_seed(plan, task.name, name, task.name, 64)) for name in study.schemes]
        head = next(line for line in text.splitlines() if line.startswith(f"| {task.train_examples or 1000:,} rows |"))
        column = [cell.strip() for cell in head.split("|")].index(task.data)
        table = text.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
        cells = [row.split("|")[column].replace("*", "").split()[0] for row in table]
        assert cells == [f"{mean:.3f}" for mean in means]


def test_what_it_would_take_says_where_nothing_would_be_found():
    one = Difference(Interval(0.1, 0.0, 0.2, 3), 0.2, 0.4, widest=1.0)
    gaps = [dataclasses.replace(one, gap=gap) for gap in (0.1, 0.3, np.inf, None)]
    assert (
        practitioner.takes(gaps)
        == "gaps of 0.100 to 0.300 would have been found; in 1 of 4 comparisons no gap, however large"
    )
    assert practitioner.takes(gaps[2:3]) == "in 1 of 1 comparisons no gap, however large"
    assert practitioner.takes(gaps[3:]) == ""


@pytest.mark.slow  # reads all results
def test_the_picture_of_small_data_shows_the_committed_results(results):
    for name, sets in {"practitioner": 6, "practitioner_pretrained": 4}.items():
        data = practitioner.picture_data(results.studies[name])
        assert cards.shows(FOLDER, name, data), RUN
        assert len(data) == 1 + sets
        assert f"](pictures/{name}.png)" in page("README")


@pytest.mark.slow  # reads and tests all results
def test_words_by_hand_claim_what_the_tests_carry(results):
    words = {name: " ".join(by_hand(page(name)).split()) for name in ("relative_key", "fourier", "rope")}
    assert "measurements here don't tell the two apart" in words["relative_key"]
    assert "measurements here don't tell it from `lspe` or a table" in words["fourier"]
    for study in results.studies.values():
        for task in study.tasks:
            length = study.home_length(task)
            for one, other in (("relative_key", "relative_key_query"), ("lspe", "fourier"), ("learned", "fourier")):
                if {one, other} <= {*study.schemes}:
                    assert study.differences(task, length, other=other)[one].verdict() == UNDECIDED
    assert "With 1,000 rows of BLiMP `learned` and `lspe` scored higher than it" in words["rope"]
    small = results.studies["practitioner"]
    assert "with 3,000 rows neither could be told from it" in words["rope"]
    for name, verdict in {"blimp_order_1000": "better", "blimp_order_3000": UNDECIDED}.items():
        (order,) = [task for task in small.tasks if task.name == name]
        against_rope = small.differences(order, 64, other="rope")
        assert {against_rope[name].verdict() for name in ("learned", "lspe")} == {verdict}
    readme = " ".join((FOLDER.parent / "README.md").read_text(encoding="utf-8").split())
    assert "with 1,000 or 3,000 rows of six data sets no scheme was shown to be better than one" in readme
    assert not any(practitioner.those(found, "better") for _, found in practitioner.above(small))
    assert "Past the trained length it lost much on the tasks below that need order" in words["rope"]
    for plan, longest in {"listops": 1024, "probes": 256}.items():
        study = results.studies[plan]
        task = study.tasks[0]
        assert study.changes(task, study.home_length(task), longest)["rope"].verdict() == "worse"


@pytest.mark.slow  # reads and tests all results
def test_an_answer_that_the_results_no_longer_carry_is_refused(results, monkeypatch):
    """`rope` and `sinusoidal` change places in the quick start: the default no longer has the best mean."""
    study = results.studies["quickstart"]
    renamed = {"rope": "sinusoidal", "sinusoidal": "rope"}
    done = [{**run, "scheme": renamed.get(run["scheme"], run["scheme"])} for run in study.done]
    changed = dataclasses.replace(study, done=done)
    monkeypatch.setitem(results.studies, "quickstart", changed)
    with pytest.raises(ValueError, match="no longer carry: the default scheme has the best mean on the quick start"):
        answers.render_answers(FOLDER, results)


@pytest.mark.parametrize("name", [*SCHEMES, "README", "evidence"])
def test_nothing_waits_to_be_filled_in(name):
    text = page(name)
    words = re.sub(r"```.*?```|`[^`]*`", "code", text, flags=re.DOTALL)
    assert not re.search(r"(?i)\b(todo|tbd|fixme|xxx|to be written|placeholder|lorem|more information)\b", text)
    assert not re.search(r"\bnan\b|(?<!_)\{\w*\}|\[\]|<(?!!--)\w", words)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (FOLDER / target).is_file(), target


@pytest.mark.parametrize("name", SCHEMES)
def test_papers_are_cited_as_the_docstring_names_them(name):
    scheme, _ = cards._base(name)
    references = cards.read_references(FOLDER)
    papers = cards._found_papers(scheme)
    assert papers
    for who, number in papers:
        entry = references[cards._key(who)]
        assert who.split()[0] in entry
        assert entry in page(name)
        if number:
            assert f"eprint = {{{number}}}" in entry


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_curves_show_the_committed_results(name, results):
    data = cards.length_data(results, name)
    picture = FOLDER / "pictures" / f"{name}_lengths.png"
    assert picture.is_file() == bool(data), RUN
    if data:
        assert cards.shows(FOLDER, f"{name}_lengths", data), RUN
        assert f"](pictures/{name}_lengths.png)" in page(name)


@pytest.mark.slow  # draws every page again
def test_new_results_are_taken_up(tmp_path):
    """Another plan's folder and another benchmark: the card, its curve, its metadata and the page of all have them."""
    pytest.importorskip("matplotlib")
    later = tmp_path / "results" / "compare-later"
    shutil.copytree(FOLDER / "results" / "compare-probes", later)
    for path in (later / "runs").iterdir():
        if not re.search("-(none|rope)-", path.name):  # of the others no run is there
            shutil.rmtree(path)
    shutil.copy(FOLDER / "references.bib", tmp_path)
    row = {"size": "minilm", "work": "2x512", "mode": "training", "dtype": "float32", "contender": "rope"}
    row |= {"cost": 1.234, "peak_mb": 99.6}
    (tmp_path / "results" / "benchmark_schemes.json").write_text(json.dumps({"rows": [row]}))
    written = {path.name for path in cards.write_cards(tmp_path, ["rope", "alibi"])}
    assert {"rope.md", "rope_lengths.png", "alibi.md"} <= written
    assert "alibi_lengths.png" not in written
    text = (tmp_path / "rope.md").read_text()
    assert "| probes: order_near, plan `later` | 64 | " in text
    assert "| minilm, 2x512, float32 | 1.23 | 100 |" in text
    assert ModelCard(text).data.eval_results is None  # generated data aren't on the Hub
    assert "\n## `later`\n" in evidence.render_evidence(tmp_path)
    assert "Not answered: these results aren't there: listops, long" in (tmp_path / "README.md").read_text()
    text = (tmp_path / "alibi.md").read_text()
    assert "No measurement of it has been committed yet" in text
    assert "Speed: not measured yet" in text
    assert cards.write_cards(tmp_path, ["rope", "alibi"]) == []


def test_a_changed_number_is_seen_and_rounding_isnt():
    data = {"a (4,)": [1.0, 2.0, None, -3.0], "note ()": []}
    assert cards.is_fresh(data, json.loads(json.dumps(data)))
    assert cards.is_fresh(data, {**data, "a (4,)": [1.0005, 2.0, None, -3.0]})
    for other in ([1.1, 2.0, None, -3.0], [1.0, 2.0, 0.0, -3.0], [1.0, 2.0, None]):
        assert not cards.is_fresh(data, {**data, "a (4,)": other})
    assert not cards.is_fresh(data, {"a (4,)": data["a (4,)"]})
    assert not cards.is_fresh(data, None)


def test_a_changed_label_is_seen():
    panel = Lines(title="t", x=np.arange(3), y=np.ones((1, 3)), names=("",), y_label="bias (logit)")
    (key,) = cards.picture_data([panel])
    for label in ("title", "x_label", "y_label", "group"):
        assert not cards.is_fresh(
            cards.picture_data([dataclasses.replace(panel, **{label: "other"})]), {key: [1.0] * 16}
        )


@pytest.mark.slow  # draws every page again
def test_a_new_scheme_gets_a_page_that_wants_to_be_written(tmp_path):
    pytest.importorskip("matplotlib")
    assert "test_slope" in POSITIONS
    written = cards.write_cards(tmp_path, ["test_slope"])
    assert {path.name for path in written} == {"test_slope.md", "test_slope.png", "README.md", "data.json"}
    text = (tmp_path / "test_slope.md").read_text()
    assert by_hand(text) == cards.UNWRITTEN
    assert "A fixed bias per head: `-2^-h |i-j|, and 1 towards each sequence's first token`." in text
    assert cards.write_cards(tmp_path, ["test_slope"]) == []

    mine = text.replace(cards.UNWRITTEN, "Never.").replace("attention logits", "something stale")
    (tmp_path / "test_slope.md").write_text(mine)
    assert [path.name for path in cards.write_cards(tmp_path, ["test_slope"])] == ["test_slope.md"]
    assert (tmp_path / "test_slope.md").read_text() == text.replace(cards.UNWRITTEN, "Never.")

    (tmp_path / "pictures" / "test_slope.png").write_bytes(b"something else")
    assert [path.name for path in cards.write_cards(tmp_path, ["test_slope"])] == ["test_slope.png"]


def test_a_lost_mark_and_a_wrong_folder_are_named(tmp_path):
    shutil.copy(FOLDER / "rope.md", tmp_path)
    text = (tmp_path / "rope.md").read_text().replace("<!-- generated: reference -->", "")
    (tmp_path / "rope.md").write_text(text)
    with pytest.raises(ValueError, match=r"rope\.md: the mark '<!-- generated: reference -->'"):
        cards.render_cards(tmp_path, ["rope"])
    with pytest.raises(ValueError, match="is no folder"):
        cards.write_cards(tmp_path / "nowhere")
