"""The study of passkeys: what it makes up, what it measures, and what the guide says of it."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from model_cards.studies import passkey
from tests.support.common import word_tokenizer


@pytest.fixture
def tokenizer():
    words = re.findall(r"\w+|[^\w\s]", f"{passkey.FILLER} The passkey of is Remember it: has What?")
    return word_tokenizer(dict.fromkeys([*words, *passkey.FIRST, *passkey.LAST]))


def test_each_text_tells_one_passkey_and_all_places_occur(tokenizer):
    queries, texts = passkey.passkeys(tokenizer, 256, seed=1)
    assert (queries, texts) == passkey.passkeys(tokenizer, 256, seed=1)
    assert texts != passkey.passkeys(tokenizer, 256, seed=2)[1]
    assert {len(text) for text in texts} == {256}
    assert len({tuple(query) for query in queries}) == len(queries) == len(texts) == passkey.TEXTS
    person = [set(query[-4:-2]) for query in queries]  # first and last name, ?, [SEP]
    for number, text in enumerate(texts):
        assert [other for other in range(passkey.TEXTS) if person[other] <= set(text)] == [number]
    places = [text.index(tokenizer.convert_tokens_to_ids("passkey")) for text in texts]
    assert places == sorted(places)
    assert (places[0], places[-1] > 220, 100 < places[25] < 156) == (2, True, True)  # [CLS] The passkey


def reader(tokenizer, words):
    """A model whose hidden states are the tokens themselves; it knows these words alone."""
    known = torch.zeros(len(tokenizer)).double()
    known[tokenizer.convert_tokens_to_ids(list(words))] = 1

    def model(ids):
        return SimpleNamespace(last_hidden_state=known.diag()[ids])

    return model


def test_windows_are_the_first_all_or_the_best(tokenizer, monkeypatch):
    names = (*passkey.FIRST, *passkey.LAST)
    study = object.__new__(passkey.Study)
    study.tokenizer = tokenizer
    monkeypatch.setattr(passkey.Study, "model", lambda self, *_: reader(tokenizer, names))

    def found(way):
        return study.find(passkey.WAYS[way], 1024, 0)["found"]

    assert found("windows of 512, best") == found("learned-tile") == "1" * passkey.TEXTS
    first = found("first 512 tokens")
    assert 0.4 < first.count("1") / passkey.TEXTS < 0.6
    assert first.rstrip("0").count("0") <= 1  # only late passkeys are cut off; the one at the cut may be either
    text = passkey.passkeys(tokenizer, 1024, 0)[1][0]
    cut = passkey.windows(tokenizer, text, 512)
    assert [len(window) - 2 for window in cut] == [341, 340, 341]
    assert [token for window in cut for token in window[1:-1]] == text[1:-1]
    asked = torch.eye(len(tokenizer)).double()
    everything = reader(tokenizer, tokenizer.get_vocab())
    mean, best = (
        study._scores(everything, passkey.WAYS[f"windows of 512, {how}"], asked, text) for how in ("mean", "best")
    )
    counts = torch.stack([torch.tensor(window).bincount(minlength=len(tokenizer)).double() for window in cut])
    torch.testing.assert_close(mean, counts.sum(0) / counts.sum(0).norm())
    torch.testing.assert_close(best, (counts / counts.norm(dim=1, keepdim=True)).amax(0))


def test_a_share_counts_all_seeds_with_wilsons_interval():
    parts = {f"rope-default/256/{seed}": {"found": "10" * 5} for seed in range(2)}
    shown = passkey.table({"parts": {**parts, "rope-default/2568/0": {"found": "1"}}})
    assert "| `rope-default` | 0.50 [0.30, 0.70] |" in shown  # (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)


def test_the_words_of_the_guide_are_what_was_measured():  # its tables: test_benchmark.py
    results = json.loads((Path(__file__).parents[2] / "model_cards/results/passkey.json").read_text())
    decided = {where for where, (_, _, p) in passkey.tests(results, "rope-dynamic").items() if p < 0.05}
    best = {("windows of 256, best", length) for length in passkey.LONGER}
    assert not decided & best
    assert {length for way, length in decided if way == "windows of 512, mean"} == {1024}

    def found(way, length):
        return passkey._found(results, way, length).count("1")

    for length in passkey.LONGER:
        rivals = [way for way in passkey.WAYS if way not in ("rope-dynamic", "rope-unhealed") and "best" not in way]
        most = max(rivals, key=lambda way: found(way, length))
        assert (found("rope-dynamic", length) > found(most, length)) == (length < 4096)
        for table in ("tile", "interpolate"):
            assert found(f"learned-{table}", length) < found("windows of 256, best", length)
        for way in ("linear", "yarn"):
            assert found(f"rope-{way}", length) <= found("rope-default", length)
    assert found("rope-unhealed", 256) < found("first 512 tokens", 256) < found("rope-default", 256)


def test_each_healing_is_measured_in_all_of_its_ways_and_a_stopped_study_goes_on(tmp_path, monkeypatch, tokenizer):
    """Extensions at every length; tests are corrected for those of all healings."""
    found: list[tuple[str, int, int, int]] = []
    ways = {way: name for name, way in passkey.WAYS.items()}

    def find(self, way, length, seed, healing):
        if len(found) == 40:
            raise KeyboardInterrupt
        found.append((ways[way], length, seed, healing))
        return {"found": "10" * 25}

    monkeypatch.setattr(passkey.Study, "find", find)
    monkeypatch.setattr(passkey.Study, "heal", lambda self, healing: {"seed": healing})
    monkeypatch.setattr(passkey, "find_minilm", Path)
    monkeypatch.setattr(passkey, "open_tokenizer", lambda _: tokenizer)
    output = tmp_path / "passkey.json"
    options = SimpleNamespace(minilm="minilm", work=tmp_path, output=output, parts=None, ray=False, healings=3)
    with pytest.raises(KeyboardInterrupt):
        passkey.Study(options).run()
    first = found[:]
    found.clear()
    monkeypatch.setattr(
        passkey.Study, "find", lambda self, *part: found.append((ways[part[0]], *part[1:])) or {"found": "10" * 25}
    )
    passkey.Study(options).run()
    results = json.loads(output.read_text())
    assert not set(first) & set(found)
    assert {healing for *_, healing in found} == {0, 1, 2}
    for name in ("rope-linear", "rope-dynamic", "rope-yarn", "learned-tile"):
        assert {part[1] for part in first + found if part[0] == name} == set(passkey.SEEDS)
    assert results["parts"]["heal/rope, healing 2"]["seed"] == 2
    assert "rope-dynamic, healing 2/4096/0" in results["parts"]
    assert not any("learned" in name for name in results["parts"] if "healing" in name)
    shown = passkey.test_table(results)
    assert shown.count("| `rope-dynamic`, healing ") == 2
    assert "| 1,024 | `rope-dynamic`, healing 1 |" in passkey.depth_table(results)
    assert "| `rope-yarn`, healing 2 |" in passkey.table(results)
    only = {"rope-dynamic, healing 1/1024/0": {"found": "1" * 12}, "learned-tile/1024/0": {"found": "0" * 12}}
    made = passkey.tests({"parts": {"rope-dynamic/1024/0": {"found": "1"}, **only}}, "rope-dynamic, healing 1")
    assert made == {("learned-tile", 1024): (12, 0, pytest.approx(48 * 2 / 2**12))}


@pytest.mark.parametrize(
    ("healing", "source", "folder"), [(0, "healed", "rope"), (1, "healed", "rope, healing 1"), (1, "learned", None)]
)
def test_a_healing_has_its_seed_and_its_folder(tmp_path, monkeypatch, healing, source, folder):
    study = object.__new__(passkey.Study)
    study.source, study.work, study.options = tmp_path / "minilm", tmp_path, SimpleNamespace(data=str(tmp_path))
    asked = []
    monkeypatch.setattr(passkey, "read_rows", lambda *_: [{"text": "a film"}])

    def convert(source, output=None, **options):
        asked.append((Path(source).name, output and Path(output).name, options.get("seed")))
        return SimpleNamespace(model=None, report=SimpleNamespace(to_dict=dict))

    monkeypatch.setattr(passkey, "convert", convert)
    passkey.Study.model.__wrapped__(study, source, "dynamic", 1024, healing)
    assert asked == [("minilm", folder, healing)] * (folder is not None) + [(folder or "minilm", None, 0)]


@pytest.mark.parametrize(("gained", "lost", "p"), [(12, 0, 24 * 2 / 2**12), (5, 5, 1.0), (0, 0, 1.0)])
def test_ways_are_compared_on_the_queries_that_only_one_of_them_finds(gained, lost, p):
    queries = {"rope-dynamic": "1" * gained + "0" * lost, "other": "0" * gained + "1" * lost}
    parts = {}
    for name, way in passkey.WAYS.items():
        answers = queries["rope-dynamic" if name == "rope-dynamic" else "other"] + "1"
        parts |= {f"{name}/{length}/0": {"found": answers} for length in way.lengths}
    made = passkey.tests({"parts": parts}, "rope-dynamic")
    assert len(made) == 24
    assert all(values == (gained, lost, pytest.approx(p)) for values in made.values())
