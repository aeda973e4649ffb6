"""Every scheme has a page that says what the code says, with a picture of what the code does."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from common import SCHEMES

from hf_posenc import POSITIONS, cards
from hf_posenc.panels import Lines

FOLDER = Path(__file__).parent.parent / "model_cards"
RUN = f"Run `{cards.COMMAND}` and commit what it writes."


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
    assert {path.stem for path in FOLDER.glob("*.md")} - {"README", "evidence", "speed"} == set(SCHEMES)


def test_generated_parts_say_what_the_code_says():
    for name in SCHEMES:
        page(name)
    for path, text in cards.render_cards(FOLDER, SCHEMES).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date. {RUN}"


def test_pages_hold_the_facts():
    learned = page("learned")
    for part in ("393,216", "512 (`max_position_embeddings`)", "| embeddings, once |", "arxiv.org/abs/1810.04805"):
        assert part in learned
    measured = json.loads((FOLDER / "results" / "quickstart.json").read_text())["learned"]
    assert f"{measured['mean']:.3f} ± {measured['std']:.3f}" in learned
    assert "| acts on | nothing |\n| sees | no order |" in page("none")
    assert "| sees | absolute positions |" in learned
    assert "| sees | distances alone |" in page("alibi")
    assert "\n- `yarn`: pairs that turn" in page("rope")
    assert "has `score_mod`" in page("t5")
    assert "has no `score_mod`" in page("tupe")
    assert "| eager, sdpa, flex_attention, FlashAttention |" in page("rope")
    assert "| eager, sdpa; has no `score_mod` for flex_attention; FlashAttention takes no bias |" in page("deberta")
    assert "| `max_distance` | `128` | from here on" in page("t5")
    assert "| `dropout` | `0.0` | dropout on the sum" in page("learned")  # from the docstring of the base class
    assert r"\|" not in page("kerple").split("| argument")[0]  # formulas aren't table cells


def test_the_page_of_all_links_every_scheme():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in SCHEMES:
        assert f"| [`{name}`]({name}.md) |" in text


@pytest.mark.parametrize("name", SCHEMES)
def test_pictures_show_what_the_scheme_does(name):
    recorded = cards.read_record(FOLDER).get(name)
    data = cards.picture_data(cards.picture_panels(name))
    assert cards.is_fresh(data, recorded), f"The picture of {name} shows something else than the scheme does. {RUN}"
    assert cards.shows(FOLDER, name, [recorded]), f"pictures/{name}.png isn't drawn from data.json. {RUN}"
    picture = FOLDER / "pictures" / f"{name}.png"
    assert f"](pictures/{name}.png)" in page(name)
    assert picture.stat().st_size < 150_000


def test_the_sheet_is_drawn_from_the_same_numbers():
    recorded = cards.read_record(FOLDER)
    assert cards.shows(FOLDER, "comparison", [recorded[name] for name in cards.COMPARED]), RUN
    assert sum(path.stat().st_size for path in (FOLDER / "pictures").iterdir()) < 3_000_000


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
