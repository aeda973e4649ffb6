"""`convert`: from other models."""

from typing import Annotated

import typer

from hf_posenc import options as shared
from hf_posenc.errors import user_errors

from .application import Output, Overwrite, app


@app.command()
def convert(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA, RoFormer, MPNet, Jina v3, "
            "NomicBERT, GTE, ModernBERT or PosEnc: folder or Hub name.",
            show_default=False,
        ),
    ],
    out: Output,
    scheme: shared.SchemeOption = None,
    scheme_kwargs: shared.SchemeKwargsOption = None,
    rope_parameters: Annotated[
        str | None, typer.Option(metavar="JSON", help='For rope, such as {"rope_theta": 160000}.', show_default=False)
    ] = None,
    max_position_embeddings: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How long inputs may be; default: as in the source.")
    ] = None,
    extension: Annotated[
        str | None,
        typer.Option(help="How longer: tile (default) or interpolate for tables; linear, dynamic or yarn for RoPE."),
    ] = None,
    heal: Annotated[
        str | None, typer.Option(metavar="FILE", help="Unlabelled text to heal a swap with: .txt, .csv, .jsonl, ...")
    ] = None,
    text_column: shared.TextColumnOption = None,
    max_steps: Annotated[
        int | None, typer.Option(metavar="N", help="Steps of healing; default: 2000.", show_default=False)
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(metavar="N", help="Longest text to heal with; default: the source's limit.", show_default=False),
    ] = None,
    bf16: Annotated[
        bool | None, typer.Option("--bf16/--no-bf16", help="Heal in mixed precision: twice as fast where it is fast.")
    ] = None,
    eval_text: Annotated[
        str | None, typer.Option(help="Text to measure on; default: a part of --heal, or sentences that come along.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Head of the result: fill-mask, text-classification, ...; default: the source's.")
    ] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read a .bin file where there is no safetensors file.")
    ] = False,
    allow_other_tokens: shared.OtherTokensOption = False,
    overwrite: Overwrite = False,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn at random.")] = 0,
    revision: shared.RevisionOption = None,
) -> None:
    """Make a PosEnc checkpoint of pretrained BERT-family weights, with any positional scheme, and measure it.

    Without a scheme the result computes what the source does. With another scheme it doesn't: the report says how far
    its hidden states are from the original's, and `--heal` brings them nearer. One command swaps, heals, then extends.
    Ctrl-C keeps a checkpoint of the healing, and the same command goes on.
    """
    from hf_posenc.conversion import convert as run
    from hf_posenc.model.package_config import PosEncConfig

    with user_errors():  # before the source is loaded
        PosEncConfig(position_embedding_type=scheme or "none")
    own = ("eval_text", "scheme", "scheme_kwargs")
    options = {name: value for name, value in context.params.items() if name not in own}
    options["rope_parameters"] = shared.json_object("rope_parameters", rope_parameters)
    _, report = run(
        **options,
        position_embedding_type=scheme,
        position_embedding_kwargs=shared.json_object("scheme_kwargs", scheme_kwargs),
        eval_texts=eval_text,
    )
    print(f"{report}\nThe checkpoint and conversion.json are in {out}")
