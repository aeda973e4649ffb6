"""`publish`: uploads a checkpoint to the Hub."""

from typing import Annotated

import typer

from hf_posenc import options as shared

from .application import WritingCommand, app


@app.command(cls=WritingCommand)
def publish(
    context: typer.Context,
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint's folder.", show_default=False)],
    repo_id: Annotated[str, typer.Option(help="Where to: owner/name.", show_default=False)],
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Who sees a new repository. Default: the owner's setting.")
    ] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request instead.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, made if it doesn't exist. Default: main.")] = None,
    commit_message: Annotated[str, typer.Option(help="Title of the commit.")] = "Upload a PosEnc model",
    license: Annotated[str | None, typer.Option(help="Of the model, such as apache-2.0.", show_default=False)] = None,
    language: Annotated[list[str] | None, typer.Option(help="Of its texts: en. May be given again.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="What it was trained on. May be given again.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Send nothing: write the card (README.hub.md) and list the files.")
    ] = False,
    trust_remote_code: shared.TrustOption = False,
) -> None:
    """Publish a checkpoint on the Hub: weights, code, tokenizer, card and checksums; then load it back and compare.

    The token is that of `hf auth login` or the environment variable HF_TOKEN. What isn't part of the model stays here.
    """
    from hf_posenc.hub.publishing import publish as run

    print(run(**context.params))
