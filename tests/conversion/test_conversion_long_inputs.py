"""The study of long inputs: the mean over windows, the rate that is chosen, and its table."""

import json
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch

from hf_posenc import UserError
from model_cards.studies import long_inputs
from model_cards.studies.parts import paired_interval
from tests.support.common import word_tokenizer


def part(accuracy, **more):
    return {"accuracy": accuracy, "core_seconds": 60.0, "gigabytes": 1.5, **more}


@pytest.fixture
def results():
    baseline = {"accuracy": 0.8, "majority": 0.5, "examples": 400}
    parts = {f"{name}/word pairs": baseline for name in long_inputs.DATA}
    for name, base in (("imdb", 0.7), ("review_polarity", 0.5)):
        for seed in long_inputs.SEEDS:
            parts[f"{name}/cut/{seed}"] = part(base + 0.01 * seed, windows=base + 0.01 * seed + 0.05)
            parts[f"{name}/tile/{seed}"] = part(base + 0.01 * seed + 0.02 * (seed % 2), gigabytes=4.0)
            parts[f"{name}/rope-cut/{seed}"] = part(base + 0.01 * seed + 0.03)
            parts[f"{name}/rope-dynamic/{seed}"] = part(base + 0.01 * seed + 0.04)
    return {"parts": parts, "tests": 400}


def cells_of(results):
    lines = long_inputs.table(results).splitlines()
    return {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:]}


def test_gains_are_paired_by_seed_over_both_sets_against_cutting_with_any_and_with_the_same_weights(results):
    cells = cells_of(results)
    shown = ("word pairs", "cut", "cut, windows", "tile", "rope-cut", "rope-dynamic")
    assert {*cells} == {long_inputs.ROWS[row] for row in shown}
    # Student's t with 4 degrees of freedom: 2.776 sd / sqrt(5), sd of 0 to 0.04 is 0.0158
    scores = ["0.720 [0.700, 0.740]", "0.520 [0.500, 0.540]; 0 of 5 learned"]
    assert cells["its own table, texts cut at 512"] == [*scores, "", "", "1.0", "1.5"]
    always = "+0.050 [+0.050, +0.050]"
    assert cells["the same, mean over windows of 512"][2:] == [always, always, "", ""]
    tile = cells["its own table repeated to 1,536"]
    assert tile[2].startswith("+0.008 [")
    assert tile[3:] == [tile[2], "1.0", "4.0"]
    rope = cells["healed `rope`, `dynamic` to 2,048"]
    assert rope[2:4] == ["+0.040 [+0.040, +0.040]", "+0.010 [+0.010, +0.010]"]
    assert cells["healed `rope`, texts cut at 512"][3] == ""
    assert cells["TF-IDF of words and word pairs, a linear model"] == ["0.800", "0.800", "", "", "", ""]


def test_a_table_prints_in_the_middle_of_a_run_and_pairs_the_seeds_that_are_there(results):
    parts = results["parts"]
    for name in ("imdb/tile/0", "imdb/rope-dynamic/3", *(f"review_polarity/tile/{seed}" for seed in range(5))):
        del parts[name]
    results["parts"] = dict(reversed(parts.items()))
    cells = cells_of(results)
    assert cells["its own table repeated to 1,536"][1:4] == ["", "", ""]
    assert cells["healed `rope`, `dynamic` to 2,048"][2] == "+0.040 [+0.040, +0.040]"
    for kept in range(0, len(parts), 5):
        some = {"parts": dict([*parts.items()][:kept]), "tests": 400}
        assert long_inputs.table(some).startswith("| ")
        assert long_inputs.test_table(some) == ""


def test_the_rate_that_is_taken_is_said_with_those_that_were_tried():
    tried = {"5e-05": 0.7, "0.0001": 0.7, "0.0002": 0.9}
    parts = {f"imdb/{way}/rate/{rate}": {"accuracy": tried[rate]} for way in ("cut", "rope-cut") for rate in tried}
    parts["imdb/cut/rate/0.0002"] = {"accuracy": 0.6}
    assert long_inputs.rate_table({"parts": parts}).splitlines()[2:] == [
        "| imdb | its own table | 0.700 | **0.700** | 0.600 |",
        "| imdb | healed `rope` | 0.700 | 0.700 | **0.900** |",
    ]


@pytest.mark.parametrize(("majority", "learned"), [(0.5, ""), (0.7, "; 0 of 1 learned")])
def test_a_run_has_learned_if_it_is_better_than_the_majority(majority, learned):
    parts = {"hyperpartisan/word pairs": {"accuracy": 0.8, "majority": majority, "examples": 195}}
    parts["hyperpartisan/cut/0"] = part(0.72)
    assert cells_of({"parts": parts, "tests": 1400})["its own table, texts cut at 512"][0] == f"0.720{learned}"


def test_each_planned_row_is_tested_against_its_own_cut_on_the_same_texts():
    right = {"cut": "1100", "rope-cut": "1110", "rope-dynamic-1536": "1111", "tile": "1111"}
    parts = {
        f"imdb/{way}/{seed}": {"accuracy": 1, "right": {"accuracy": answers * 50, "windows": "1" * 200}}
        for way, answers in right.items()
        for seed in (0, 2)
    }
    del parts["imdb/tile/0"]
    lines = long_inputs.test_table({"parts": parts}).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        *("tile minus cut", "cut, windows minus cut", "rope-cut minus cut"),
        *("rope-dynamic-1536 minus rope-cut", "rope-cut, windows minus rope-cut"),
    ]
    found = paired_interval([("1111" * 50, "1110" * 50)] * 2, len(long_inputs.PLANNED))
    assert f"| **+0.250 [{found.low:+.3f}, {found.high:+.3f}]** |  |" in lines[5]
    assert "| **+0.500 [" in lines[2]


def test_a_study_of_more_rows_goes_on_and_keeps_which_answers_are_right(tmp_path, monkeypatch):
    """Few rows hold a fifth out to choose rates; what isn't like the parts that are there is refused."""
    words = ["--bf16", "--output", str(tmp_path / "long.json")]
    asked = []
    rows = {
        "train_long": [{"text": "film", "label": "good"}] * 1400,
        "test_long": [{"text": "film", "label": "good"}] * 1400,
        "train": [{"text": "news", "label": "yes"}] * 449,
        "validation": [{"text": "news", "label": "yes"}] * 70,
        "test": [{"text": "news", "label": "no"}] * 125,
    }

    def fine_tune(options, tables, **_):
        if len(asked) == 9:
            asked.append(None)
            raise KeyboardInterrupt
        asked.append((options.bf16, options.max_length, len(tables["train"])))

    def predicted(trained, texts, longest, windows=None):
        return ["good", *["yes"] * (len(texts) - 1)] if windows is None else ["no"] * len(texts)

    monkeypatch.setattr(long_inputs, "fine_tune", fine_tune)
    monkeypatch.setattr(long_inputs, "predicted", predicted)
    monkeypatch.setattr(long_inputs, "read_rows", lambda _, name, split: rows[split])
    monkeypatch.setattr(long_inputs, "find_minilm", str)
    monkeypatch.setattr(long_inputs.Study, "start", lambda self, way, folder: None)
    monkeypatch.setattr(long_inputs, "heal_rope", lambda *_: {})
    monkeypatch.setattr(long_inputs, "check_healed", lambda parts, name, folder: folder)
    monkeypatch.setattr(
        long_inputs, "fit_words", lambda *_: SimpleNamespace(predict=lambda texts: ["good"] * len(texts[0]))
    )
    monkeypatch.setattr("sys.argv", ["long_inputs", "--data", str(tmp_path), *words])
    with pytest.raises(KeyboardInterrupt):
        long_inputs.main()
    long_inputs.main()
    results = json.loads((tmp_path / "long.json").read_text())
    assert len(asked) - 1 == len(results["parts"]) - 3 == 2 * (2 * 3 + 3 * 4)  # each once
    assert asked[0] == (True, 512, 1000)
    assert results["parts"]["imdb/cut/rate/0.0001"]["examples"] == 200
    assert results["parts"]["hyperpartisan/cut/rate/0.0001"]["examples"] == 89
    assert {(True, 512, 360), (True, 1536, 449)} < set(asked)
    assert results["parts"]["imdb/word pairs"]["accuracy"] == 1.0
    words_there = results["parts"]["hyperpartisan/word pairs"]
    assert (words_there["majority"], words_there["examples"]) == (125 / 195, 195)
    cut = results["parts"]["hyperpartisan/rope-cut/2"]
    assert cut["right"]["accuracy"] == "0" + "1" * 69 + "0" * 125
    assert cut["right"]["windows of 256"].count("1") == 125
    assert (cut["accuracy"], cut["windows of 256"]) == (69 / 195, 125 / 195)
    shown = long_inputs.table(results)
    assert "healed `rope`, `dynamic` to 1,536" in shown
    assert "2,048" not in shown
    assert "rope-cut, windows of 256 minus rope-cut" in long_inputs.test_table(results)
    monkeypatch.setattr("sys.argv", ["long_inputs", "--data", str(tmp_path), *words, "--rows", "200"])
    with pytest.raises(UserError, match="rows 1000 there, 200 here"):
        long_inputs.main()


def test_on_a_cluster_what_a_part_needs_is_written_before_it_begins(tmp_path, monkeypatch):
    class Cluster:
        def run(self, task, name, results):
            known = {*results["parts"]}
            assert name == "heal/rope" or "heal/rope" in known
            if name.rpartition("/")[2].isdigit():
                assert {
                    f"imdb/{way}/rate/{rate:g}" for way in ("cut", "rope-cut") for rate in long_inputs.RATES
                } <= known
            future = Future()
            future.set_result({"bf16": False, "steps": long_inputs.STEPS, "parts": {name: {}}})
            return future

    monkeypatch.setattr("model_cards.studies.parts.Cluster", Cluster)
    monkeypatch.setattr(long_inputs, "find_minilm", str)
    options = {"data": str(tmp_path), "minilm": "minilm", "work": tmp_path, "output": tmp_path / "long.json"}
    options |= {"parts": None, "ray": True, "rows": None, "tests": None, "bf16": False, "seeds": 2}
    study = long_inputs.Study(SimpleNamespace(**options, sets=["imdb"], ways=["cut", "rope-cut"]))
    study.run()
    study.parts.wait()
    assert len(study.parts.read()["parts"]) == 1 + 1 + 2 * 3 + 2 * 2


def test_the_rate_is_the_best_trials_and_of_equal_ones_the_middle():
    for scores, best in (((0.6, 0.7, 0.8), 2e-4), ((0.7, 0.7, 0.6), 1e-4), ((0.7, 0.6, 0.7), 5e-5)):
        trials = {f"imdb/cut/rate/{rate:g}": part(score) for rate, score in zip(long_inputs.RATES, scores, strict=True)}
        assert long_inputs.best_rate({"parts": trials}, "imdb", "tile") == best


def test_a_text_is_answered_by_the_mean_over_its_windows():
    tokenizer, longest = word_tokenizer(dict.fromkeys(["good", "bad"])), [512]
    good = tokenizer.convert_tokens_to_ids("good")

    class Model(torch.nn.Module):
        """Logits: how many words of a window are good, and how many aren't; no window is longer than it may be."""

        config = SimpleNamespace(id2label={0: "yes", 1: "no"}, num_labels=2, problem_type="single_label_classification")
        device = torch.device("cpu")

        def forward(self, input_ids, attention_mask, **_):
            assert input_ids.shape[1] <= longest[-1]
            share = ((input_ids == good).sum(1) / attention_mask.sum(1))[:, None]
            return SimpleNamespace(logits=torch.cat((share, 1 - share), 1) * 4)

    trained = SimpleNamespace(tokenizer=tokenizer, model=Model())
    late = "good " * 500 + "bad " * 1100  # its first window is good, all of it isn't
    texts = [late, "good " * 5]
    assert long_inputs.predicted(trained, texts, 512) == ["yes", "yes"]
    assert long_inputs.predicted(trained, texts, 512, long_inputs.Windows("mean")) == ["no", "yes"]
    longest.append(256)
    assert long_inputs.predicted(trained, texts, 256, long_inputs.Windows("mean")) == ["no", "yes"]


@pytest.mark.parametrize("way", ["tile", "rope-dynamic-1536"])
def test_a_run_starts_from_its_own_weights_extended_anew(tmp_path, monkeypatch, way):
    made = []
    monkeypatch.setattr(long_inputs, "convert", lambda source, folder, **given: made.append((source, folder, given)))
    monkeypatch.setattr(long_inputs, "check_healed", lambda parts, name, folder: f"checked {folder.name}")
    study = object.__new__(long_inputs.Study)
    study.source, study.rope, study.parts = "minilm", tmp_path / "rope", None
    study.start(long_inputs.WAYS[way], "folder")
    ((source, folder, given),) = made
    assert (source, folder) == ("minilm" if way == "tile" else "checked rope", "folder")
    assert given["max_position_embeddings"] == 1536
