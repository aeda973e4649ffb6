"""The card of a converted checkpoint: where it comes from, how it is loaded, and how near it is to the source."""

from pathlib import Path

from huggingface_hub import ModelCardData

from ..checkpoints.opening import Checkpoint
from ..markdown import HERE, render
from ..tasks import auto_class
from .report import ConversionReport


def converted_card(name: str, report: ConversionReport, source: Checkpoint, *, is_sentence_transformer: bool) -> str:
    """The README of a converted checkpoint: metadata that the Hub reads, how to load it, and the report.

    Args:
        name: of the folder.
        report: of the conversion.
        source: what was converted. Of a folder the card names its own base model, if it has one.
        is_sentence_transformer: whether its modules lie beside it.
    """
    kinds = ["sentence-transformers"] if is_sentence_transformer else []
    metadata = ModelCardData(
        library_name="sentence-transformers" if is_sentence_transformer else "transformers",
        pipeline_tag="sentence-similarity" if is_sentence_transformer else report.head,
        **source.lineage,
        tags=[*kinds, "posenc", report.to_scheme, "custom_code"],
    )
    return render(
        Path(__file__).with_name("model_card.md.jinja"),
        metadata=metadata.to_yaml(),
        name=name,
        hub_name=source.hub_name,
        report=report,
        place=HERE,
        auto_class=auto_class(report.head),
        is_sentence_transformer=is_sentence_transformer,
    )
