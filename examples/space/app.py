#!/usr/bin/env python
"""What positional schemes do with a text, and what was measured: a Gradio app, ready to be a Space of the Hub.

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

VOCABULARY, SEEDS, MOST_LETTERS = 2000, 8, 300
SHOWN = ["none", "sinusoidal", "learned", "rope", "alibi", "t5"]
EXAMPLES = [
    ["The dog bit the man.", "The man bit the dog."],
    ["The dog bit the man.", "Man the bit dog the."],
    ["She only said that she loves him.", "She said that she loves only him."],
    ["Yesterday the cat slept in the garden.", "In the garden the cat slept yesterday."],
]
ABOUT = f"""
# How an encoder knows word order

Attention alone sees a bag of words. A positional scheme adds something to the embeddings, rotates queries and keys, or
biases attention by distance. Write a sentence twice, with its words in another order: how much does its embedding, the
mean of the encoder's outputs, change? 0 % is not at all, 100 % as much as by taking other words throughout.

These are {SEEDS} small encoders per scheme with **random, untrained weights**, and the mean over them. So the bars show
whether a scheme *can* see the change, not how good it is. The other tab has what trained encoders make of it.
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
def encoders(scheme: str) -> list[PosEncModel]:
    """The scheme's encoders, one for each seed; each layer's output is about as large as its input."""
    config = PosEncConfig.from_size(
        "tiny", vocab_size=VOCABULARY, position_embedding_type=scheme, initializer_range=0.1
    )
    with torch.random.fork_rng(devices=[]):
        return [PosEncModel(config).eval() for seed in range(SEEDS) if torch.manual_seed(seed)]


@torch.no_grad()
def compare(first: str, second: str, schemes: list[str]) -> Any:
    """A row for each scheme: the change from the first text to the second, in percent of that to other words."""
    numbers: dict[str, int] = {}
    texts = [re.findall(r"\w+", text[:MOST_LETTERS].lower()) for text in (first, second)]
    if not (schemes and all(texts)):  # while someone writes
        return gr.skip()
    ids = [torch.tensor([[numbers.setdefault(word, len(numbers)) for word in words]]) for words in texts]
    ids.append(len(numbers) + torch.arange(len(texts[0]))[None])  # other words throughout
    rows = []
    for scheme in [name for name in SCHEMES if name in schemes]:
        changes = []
        for encoder in encoders(scheme):
            before, after, other = (encoder(row).last_hidden_state.mean(1) for row in ids)
            changes.append(float((after - before).norm() / (other - before).norm()))
        rows.append((scheme, round(100 * sum(changes) / SEEDS, 1)))
    return pd.DataFrame(rows, columns=["scheme", "change in %"])


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
        with gr.Tab("Try a text"):
            gr.Markdown(ABOUT)
            with gr.Row():
                first = gr.Textbox(EXAMPLES[0][0], label="A sentence", max_length=MOST_LETTERS, min_width=300)
                second = gr.Textbox(
                    EXAMPLES[0][1], label="The same words in another order", max_length=MOST_LETTERS, min_width=300
                )
            schemes = gr.Dropdown(list(SCHEMES), value=SHOWN, multiselect=True, label="Schemes")
            changes = compare(*EXAMPLES[0], SHOWN)
            with gr.Row():
                table = gr.Dataframe(changes, interactive=False, label="Change of the embedding")
                bars = gr.BarPlot(
                    changes,
                    x="scheme",
                    y="change in %",
                    sort=list(SCHEMES),
                    y_lim=[0, None],
                    x_label_angle=-30,
                    height=300,
                )
            gr.Examples(EXAMPLES, [first, second], label="Others to try")
            chosen = gr.Dropdown(
                list(SCHEMES), value="rope", label="What a scheme does, with the weights of a new model"
            )
            picture = gr.Plot(draw("rope"), show_label=False, format="png", elem_classes="picture")
        with gr.Tab("What was measured"):
            plan = gr.Dropdown(list(reports), label="Comparison")
            report = gr.Markdown(reports[plan.value], elem_classes="report")
        inputs = [first, second, schemes]
        gr.on([part.change for part in inputs], compare, inputs, table, trigger_mode="always_last")
        table.change(lambda rows: rows, table, bars, api_name=False)
        chosen.change(draw, chosen, picture)
        plan.change(reports.get, plan, report)
    return page


if __name__ == "__main__":
    build().launch(css=STYLE, theme=gr.themes.Default(font=FONTS, font_mono=["ui-monospace", "monospace"]))
