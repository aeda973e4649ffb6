"""`convert`: from other models."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_posenc import options as shared
from hf_posenc.errors import UserError, spell
from hf_posenc.files import expanded

from .application import Output, Overwrite, WritingCommand, app, reads_data

if TYPE_CHECKING:
    from hf_posenc import Healing


@app.command(cls=WritingCommand)
@reads_data(*shared.OF_LABELS)
def convert(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA, RoFormer, MPNet, DeBERTa, Jina, "
            "NomicBERT, GTE, ModernBERT, ESM-2, EuroBERT or PosEnc: folder or Hub name.",
        ),
    ],
    output: Output,
    scheme: shared.SchemeOption = None,
    scheme_kwargs: shared.SchemeKwargsOption = None,
    scheme_file: shared.SchemeFileOption = None,
    rope_parameters: Annotated[
        str | None, typer.Option(metavar="JSON", help='For rope, such as {"rope_theta": 160000}.')
    ] = None,
    max_position_embeddings: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How long inputs may be; default: as in the source.")
    ] = None,
    extension: Annotated[
        str | None, typer.Option(help="How longer: tables tile (default), interpolate; RoPE linear, dynamic, yarn.")
    ] = None,
    heal: Annotated[
        str | None, typer.Option(metavar="FILE", help="Unlabelled text to heal a swap with: .txt, .csv, .jsonl, ...")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(metavar="N", help="Steps of healing; default: 2000.")] = None,
    max_length: Annotated[
        int | None, typer.Option(metavar="N", help="Longest text to heal with; default: the source's limit.")
    ] = None,
    bf16: Annotated[
        bool | None, typer.Option("--bf16/--no-bf16", help="Heal in mixed precision: twice as fast where it is fast.")
    ] = None,
    eval_texts: Annotated[
        str | None, typer.Option(metavar="FILE", help="Measure on this text; default: part of --heal, or our own.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Head of the result: fill-mask, text-classification, ...; default: the source's.")
    ] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read a .bin file where there is no safetensors file.")
    ] = False,
    allow_other_tokens: shared.OtherTokensOption = False,
    overwrite: Overwrite = False,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn at random.")] = 42,
    revision: shared.RevisionOption = None,
) -> None:
    """Make a PosEnc checkpoint of pretrained BERT-family weights, with any positional scheme, and measure it.

    Without a scheme the result computes what the source does. With another scheme it doesn't: the report says how far
    its hidden states are from the original's, and `--heal` brings them nearer. One command swaps, heals, then extends.
    Ctrl-C keeps a checkpoint of the healing, and the same command goes on.
    """
    from hf_posenc.conversion import convert as run
    from hf_posenc.data.texts import read_training_texts

    files = {name: value for name in shared.READING if (value := context.params.get(name)) is not None}
    settings = {"max_steps": max_steps, "max_length": max_length, "bf16": bf16}
    others = ("heal", *settings, *shared.READING)
    values: dict[str, Any] = {
        **{name: value for name, value in context.params.items() if name not in others},
        "rope_parameters": shared.json_object("rope_parameters", rope_parameters),
        "scheme_kwargs": shared.json_object("scheme_kwargs", scheme_kwargs),
    }
    if heal is None and eval_texts is not None and files:  # there is no healing that says how they are read
        values["eval_texts"] = read_training_texts(expanded(eval_texts), shared.Options(**files))
        files = {}
    done = run(**values, healing=_healing(heal, {**files, **settings}))
    print(f"{done}\nThe checkpoint and conversion.json are in {output}")


def _healing(texts: str | None, settings: dict[str, Any]) -> "Healing | None":
    """Makes the settings of healing from the options; refuses settings without text."""
    from hf_posenc.conversion import Healing

    given = {name: value for name, value in settings.items() if value is not None}
    if texts is not None:
        return Healing(texts, **given)
    if given:
        useless = ", ".join(spell(name, value) for name, value in given.items())
        raise UserError(f"{useless} has no effect without text to heal with. Give {spell('heal')}, or leave it out.")
    return None
