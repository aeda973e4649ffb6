"""The study of passkeys: what it makes up, what it measures, and what the guide says of it."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from common import word_tokenizer
from scipy.stats import binomtest

from model_cards.studies import passkey


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


def test_the_words_of_the_guide_are_what_was_measured():  # its table: test_benchmark.py
    root = Path(__file__).parents[2]
    parts = json.loads((root / "model_cards/results/passkey.json").read_text())["parts"]
    guide = " ".join((root / "docs/long-inputs.md").read_text().split())

    def found(way, length):
        return "".join(parts[f"{way}/{length}/{seed}"]["found"] for seed in range(passkey.SEEDS[length]))

    def compared(way, other, length):
        """Queries that only the one way finds, those that only the other does, and whether that may be chance."""
        pairs = list(zip(found(way, length), found(other, length), strict=True))
        gained, lost = pairs.count(("1", "0")), pairs.count(("0", "1"))
        return gained, lost, binomtest(gained, gained + lost).pvalue > 0.05

    for length in (1024, 2048, 4096):
        for windows in ("windows of 512, mean", "windows of 512, best"):
            for table in ("tile", "interpolate"):
                assert found(f"learned-{table}", length).count("1") < found(windows, length).count("1")
            assert found("rope-dynamic", length).count("1") > found(windows, length).count("1")
    assert compared("learned-tile", "learned-interpolate", 1024)[2]
    tile, stretched = (found(f"learned-{how}", 4096).count("1") for how in ("tile", "interpolate"))
    assert f"at 4,096 `tile` finds {tile} and `interpolate` {stretched} of 50" in guide
    gained, lost, by_chance = compared("rope-dynamic", "rope-default", 1024)
    assert f"{gained} queries that `rope` as it is misses, and misses {lost} that it finds" in guide
    assert not by_chance
    for length in (1024, 2048):
        for way in ("linear", "yarn"):
            assert found(f"rope-{way}", length).count("1") <= found("rope-default", length).count("1")
