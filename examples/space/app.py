#!/usr/bin/env python
"""What was measured of positional schemes, and what each does: a Gradio app, ready to be a Space of the Hub.

python examples/space/app.py     # then open http://127.0.0.1:7860
"""

import functools
import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read by the import that follows

import gradio as gr
import pandas as pd
import torch
from matplotlib.figure import Figure

from hf_posenc import SCHEMES, PosEncConfig, PosEncModel, plot

VOCABULARY, MOST_LETTERS = 2000, 300
DOCS = "https://example.org/hf_posenc/docs"
SHOWN = ["none", "sinusoidal", "learned", "rope", "alibi", "t5"]
EXAMPLES = [
    ["The dog bit the man.", "The man bit the dog."],
    ["The dog bit the man.", "Man the bit dog the."],
    ["She only said that she loves him.", "She said that she loves only him."],
    ["Yesterday the cat slept in the garden.", "In the garden the cat slept yesterday."],
]
ABOUT = f"""
# How an encoder knows word order

Attention alone sees a bag of words. A *positional scheme* adds something to the embeddings, rotates queries and keys,
or biases attention by distance. [Which scheme when]({DOCS}/model_cards/) says what follows for you, [the
start]({DOCS}/) how to train with one.
"""
TRY = """
Write a sentence twice, with its words in another order. Does its embedding, the mean of the encoder's outputs, change?
The encoders are small and **untrained**, so this is whether a scheme *can* tell the two apart, not how well.
"""
# On a phone, wide tables and pictures scroll: shrunk, nobody could read them.
STYLE = """
.report table { border: 0; display: block; overflow-x: auto; padding: 0; white-space: nowrap; }
@media (max-width: 700px) {
  .picture :has(> img) { display: block !important; width: 100% !important; overflow-x: auto !important; }
  .picture img { width: 62rem !important; max-width: none !important; }
}
"""
FONTS = ["system-ui", "sans-serif"]  # the theme's own are fetched from elsewhere


@functools.cache
def encoder(scheme: str) -> PosEncModel:
    """A small encoder; each layer's output is about as large as its input."""
    config = PosEncConfig.from_size(
        "tiny", vocab_size=VOCABULARY, position_embedding_type=scheme, initializer_range=0.1
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return PosEncModel(config).eval()


@torch.no_grad()
def compare(first: str, second: str, schemes: list[str]) -> Any:
    """A row for each scheme: yes where the two texts have different embeddings."""
    numbers: dict[str, int] = {}
    texts = [re.findall(r"\w+", text[:MOST_LETTERS].lower()) for text in (first, second)]
    if not (schemes and all(texts)):  # while someone writes
        return gr.skip()
    ids = [torch.tensor([[numbers.setdefault(word, len(numbers)) for word in words]]) for words in texts]
    rows = []
    for scheme in [name for name in SCHEMES if name in schemes]:
        before, after = (encoder(scheme)(row).last_hidden_state.mean(1) for row in ids)
        is_same = torch.allclose(before, after, atol=1e-5)
        rows.append((scheme, "no" if is_same else "yes"))
    return pd.DataFrame(rows, columns=["scheme", "tells them apart"])


def draw(scheme: str) -> Figure:
    """What the scheme does in a new encoder with four heads."""
    return plot(scheme)


def read_reports() -> dict[str, str]:
    """The committed reports, by the name of their plan."""
    sections = Path(__file__).with_name("results.md").read_text(encoding="utf-8").split("\n## ")[1:]
    return dict(section.split("\n", 1) for section in sections)


def build() -> gr.Blocks:
    """The page. What it shows at first is computed here, so nothing is empty before a click."""
    reports = read_reports()
    with gr.Blocks(title="Positional schemes", analytics_enabled=False) as page:
        gr.Markdown(ABOUT)
        with gr.Tab("What was measured"):
            plan = gr.Dropdown(list(reports), label="Comparison, of trained encoders")
            report = gr.Markdown(reports[plan.value], elem_classes="report")
        with gr.Tab("Try a text"):
            gr.Markdown(TRY)
            with gr.Row():
                first = gr.Textbox(EXAMPLES[0][0], label="A sentence", max_length=MOST_LETTERS, min_width=300)
                second = gr.Textbox(
                    EXAMPLES[0][1], label="The same words in another order", max_length=MOST_LETTERS, min_width=300
                )
            schemes = gr.Dropdown(list(SCHEMES), value=SHOWN, multiselect=True, label="Schemes")
            table = gr.Dataframe(compare(*EXAMPLES[0], SHOWN), interactive=False, show_label=False)
            gr.Examples(EXAMPLES, [first, second], label="Others to try")
            chosen = gr.Dropdown(
                list(SCHEMES), value="rope", label="What a scheme does, with the weights of a new model"
            )
            picture = gr.Plot(draw("rope"), show_label=False, format="png", elem_classes="picture")
        inputs = [first, second, schemes]
        gr.on([part.change for part in inputs], compare, inputs, table, trigger_mode="always_last")
        chosen.change(draw, chosen, picture)
        plan.change(reports.get, plan, report)
    return page


if __name__ == "__main__":
    build().launch(css=STYLE, theme=gr.themes.Default(font=FONTS, font_mono=["ui-monospace", "monospace"]))
