#!/usr/bin/env python
"""What positional schemes do, to look at in a browser; ready to be a Space of the Hub.

pip install "hf-posenc[plots]" gradio
python examples/space/app.py                              # then open http://127.0.0.1:7860
HF_POSENC_CHECKPOINT=runs/mine python examples/space/app.py
"""

import contextlib
import functools
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read by the import that follows

import gradio as gr
import pandas as pd

from hf_posenc import SCHEMES, PosEncConfig
from hf_posenc.errors import one_line
from hf_posenc.finetuning.prediction import load_classifier, predict
from hf_posenc.schemes.plots import plot_position

PRESET = "mini"  # four heads, 256 dimensions: few enough to tell apart in a picture
CHECKPOINT = os.environ.get("HF_POSENC_CHECKPOINT", "")
PUBLIC = "SPACE_ID" in os.environ  # set by the Hub: strangers then name checkpoints, and no folder of this machine
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
MOST_POSITIONS = 512  # in a picture
SENTENCE = "It's herself who Karla saw."
WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
# A picture has two or three panels beside each other: on a phone it scrolls, since shrunk nobody could read it.
STYLE = """
@media (max-width: 700px) {
  .picture :has(> img) { display: block !important; width: 100% !important; overflow-x: auto !important; }
  .picture img { width: 62rem !important; max-width: none !important; }
}
"""
FONTS = ["system-ui", "sans-serif"]  # the theme's own are fetched from elsewhere


def readable(handler: Callable[..., tuple[Any, ...]], outputs: int) -> Callable[..., tuple[Any, ...]]:
    """What goes wrong is a sentence in the page: the last output, beside empty ones."""

    @functools.wraps(handler)
    def run(*inputs: Any) -> tuple[Any, ...]:
        try:
            return (*handler(*inputs), "")
        except (ValueError, OSError, ImportError) as error:
            return (*[None] * outputs, f"⚠️ {one_line(error)}")
        except Exception as error:  # a visitor can't see the log
            traceback.print_exc()
            return (*[None] * outputs, f"⚠️ {type(error).__name__}: {one_line(error)}")

    return run


def show_scheme(scheme: str, positions: int) -> tuple[Any]:
    """One scheme, or several joined by +, with the weights of a new model."""
    config = PosEncConfig.from_preset(PRESET, position_embedding_type=scheme)
    return (plot_position(config, max_positions=int(positions or MOST_POSITIONS)),)


def load(checkpoint: str) -> Any:
    """A classifier that PosEnc computes; its code is this package's, and of its files safetensors alone are read."""
    if PUBLIC and checkpoint != CHECKPOINT and (not HUB_NAME.fullmatch(checkpoint) or Path(checkpoint).exists()):
        raise ValueError(f"{checkpoint!r} is no name on the Hub. Give one, such as me/my-model.")
    config: dict[str, Any] = {}
    with contextlib.suppress(OSError):  # what can't be read is named below
        config = PosEncConfig.get_config_dict(checkpoint)[0]
    if not isinstance(config, dict):
        raise ValueError(f"{checkpoint!r} has a damaged config.json.")
    kind = config.get("model_type", PosEncConfig.model_type)
    if kind != PosEncConfig.model_type:  # before gigabytes of it are loaded
        raise ValueError(f"{checkpoint!r} is a {kind} model, not a PosEnc one.")
    files = sorted(Path(checkpoint).glob("*")) if Path(checkpoint).is_dir() else []
    return _load(checkpoint, config.get("_commit_hash"), *((file.name, file.stat().st_mtime_ns) for file in files))


@functools.lru_cache(maxsize=2)
def _load(checkpoint: str, *version: object) -> Any:
    """A checkpoint as it was at a time: a folder that is trained into anew, or pushed anew, is read anew."""
    return load_classifier(checkpoint)


def swap(sentence: str, chosen: str) -> str:
    """A sentence with two of its words in each other's places; punctuation stays where it is."""
    words = list(WORD.finditer(sentence))
    if len(words) < 2:
        raise ValueError(f"{sentence!r} has no two words to swap. Write a sentence of two or more.")
    named = [word.casefold() for word in WORD.findall(chosen)]
    if not named:
        first, second = words[-2:]
        if first[0].casefold() == second[0].casefold():
            raise ValueError(f"The last two words are both {first[0]!r}. Write which two words to swap.")
    elif len(named) != 2 or named[0] == named[1]:
        raise ValueError(f"{chosen!r} are not two different words. Write two words of the sentence, or leave it empty.")
    else:
        places = {word[0].casefold(): word for word in reversed(words)}  # the first where a word stands twice
        missing = [word for word in named if word not in places]
        if missing:
            raise ValueError(f"{missing[0]!r} isn't in the sentence. Its words are {', '.join(w[0] for w in words)}.")
        first, second = sorted((places[word] for word in named), key=lambda word: word.start())
    between = sentence[first.end() : second.start()]
    return sentence[: first.start()] + second[0] + between + first[0] + sentence[second.end() :]


def show_model(checkpoint: str, sentence: str, words: str, positions: int) -> tuple[str, pd.DataFrame, str, Any]:
    """What a trained model is and says, before and after the swap, how far it looks, and its positions."""
    checkpoint = (checkpoint or "").strip()
    if not checkpoint:
        raise ValueError(
            "No checkpoint is named. Give the folder of a classifier, or its name on the Hub: me/my-model."
        )
    other = swap(sentence or "", words or "")
    classifier = load(checkpoint)
    model, tokenizer = classifier.model, classifier.tokenizer
    position = model.base_model.position
    length = "any length" if position.max_length is None else f"at most {position.max_length:,} tokens"
    total, positional = (sum(weight.numel() for weight in part.parameters()) for part in (model, position))
    described = (
        f"**{type(model).__name__}** with `{model.config.position_embedding_type}` positions: {total:,} parameters, "
        f"{positional:,} of them positional; {length}."
    )
    answers = list(predict(classifier, [(sentence,), (other,)]))
    shares = [answer.get("probabilities") or answer.get("predictions") or answer for answer in answers]
    rows = [
        {"text": text, **{label: f"{share[label]:.3f}" for label in sorted(share)}}
        for text, share in zip((sentence, other), shares, strict=True)
    ]
    difference = max(abs(shares[0][label] - shares[1][label]) for label in shares[0])
    verdict = f"The swap changes what the model says by at most {difference:.3f}."
    if difference < 1e-4:
        verdict = "The model says the same: it doesn't see this change of the order."
    limit = position.max_length or MOST_POSITIONS
    shown = min(int(positions or limit), limit)
    ids = tokenizer(sentence, truncation=True, max_length=min(limit, MOST_POSITIONS), return_tensors="pt")["input_ids"]
    return (
        described,
        pd.DataFrame(rows),
        verdict,
        plot_position(model, max_positions=shown, input_ids=ids),
    )


def build() -> gr.Blocks:
    """The page."""
    with gr.Blocks(title="Positional schemes", analytics_enabled=False) as page:
        gr.Markdown(
            "# How an encoder knows word order\n"
            "Attention sees a bag of words. A positional scheme adds something to the embeddings, turns queries and "
            "keys, or biases attention by distance. Look at what each does, and at what a trained model makes of it."
        )
        with gr.Tab("Schemes"):
            chosen = gr.Dropdown(
                list(SCHEMES),
                value="rope",
                allow_custom_value=True,
                label="Scheme",
                info="learned+t5 is both at once.",
            )
            length = gr.Slider(8, MOST_POSITIONS, value=128, step=8, label="Positions")
            draw = gr.Button("Show", variant="primary")
            complaint = gr.Markdown()
            picture = gr.Plot(label="What it does", show_label=False, format="png", elem_classes="picture")
            draw.click(readable(show_scheme, 1), [chosen, length], [picture, complaint], api_name="schemes")
            page.load(readable(show_scheme, 1), [chosen, length], [picture, complaint], api_name=False)
        with gr.Tab("A trained model"):
            with gr.Row():
                checkpoint = gr.Textbox(
                    CHECKPOINT,
                    label="Checkpoint",
                    placeholder="runs/mine, or me/my-model on the Hub",
                    info="A classifier that hf-posenc train wrote. No code of it is run.",
                )
                sentence = gr.Textbox(SENTENCE, label="Sentence")
            with gr.Row():
                words = gr.Textbox("saw Karla", label="Words to swap", info="Empty: the last two.")
                shown = gr.Slider(8, MOST_POSITIONS, value=64, step=8, label="Positions")
            ask = gr.Button("Ask the model", variant="primary")
            problem = gr.Markdown()
            about = gr.Markdown()
            answers = gr.Dataframe(interactive=False, wrap=True, label="What it says")
            verdict = gr.Markdown()
            table = gr.Plot(label="What its positions do", show_label=False, format="png", elem_classes="picture")
            ask.click(
                readable(show_model, 4),
                [checkpoint, sentence, words, shown],
                [about, answers, verdict, table, problem],
                api_name="model",
            )
    return page


if __name__ == "__main__":
    build().launch(css=STYLE, theme=gr.themes.Default(font=FONTS, font_mono=["ui-monospace", "monospace"]))
