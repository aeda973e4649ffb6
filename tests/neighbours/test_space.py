"""The Gradio app of examples/space: what it shows at first, and what it answers through its own server."""

import importlib.util
import re
from pathlib import Path

import pytest
from huggingface_hub import SpaceCard

SPACE = Path(__file__).parents[2] / "examples" / "space"


def test_the_card_is_what_the_hub_reads():
    card = SpaceCard.load(SPACE / "README.md")
    assert (card.data.sdk, card.data.license) == ("gradio", "apache-2.0")
    assert (SPACE / card.data.app_file).is_file()
    assert re.fullmatch(r"\d+\.\d+\.\d+", card.data.sdk_version)
    assert len(card.data.short_description) <= 60
    assert (SPACE / "requirements.txt").read_text().split() == ["hf-posenc[plots]"]


@pytest.mark.slow
def test_a_text_is_tried_under_several_schemes_and_the_committed_results_are_shown():
    pytest.importorskip("gradio")
    from gradio_client import Client

    spec = importlib.util.spec_from_file_location("app", SPACE / "app.py")
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    page = app.build()
    shown = {str(part["props"].get("value")) for part in page.get_config_file()["components"]}
    assert any("semeval2010_task8" in value and "Which one, and how sure" in value for value in shown)
    _, address, _ = page.launch(prevent_thread_lock=True, quiet=True)
    client = Client(address, verbose=False)
    schemes, first, other = ["none", "rope", "sinusoidal"], "The dog bit the man.", "The man bit the dog."
    answers = dict(client.predict(first, other, schemes, api_name="/compare")["data"])
    assert answers == {"none": "no", "sinusoidal": "yes", "rope": "yes"}
    same = dict(client.predict(first, "the DOG, bit the man", schemes, api_name="/compare")["data"])
    assert set(same.values()) == {"no"}
    pictures = [client.predict(scheme, api_name="/draw")["plot"] for scheme in ("rope", "t5")]
    assert pictures[0] != pictures[1]
    (listops,) = [plan for plan in app.read_reports() if "(listops)" in plan]
    assert "Yes on listops: `relative_key_query` has" in client.predict(listops, api_name="/get")
    page.close()
