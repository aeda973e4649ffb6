"""The card of a converted checkpoint: where it comes from, how it is loaded, and how near it is to the source."""

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from ..checkpoints.opening import Checkpoint
from ..errors import is_local
from ..markdown import HERE, render
from ..tasks import auto_class
from .report import ConversionReport


def converted_card(name: str, report: ConversionReport, source: Checkpoint, *, is_sentence_transformer: bool) -> str:
    """The README of a converted checkpoint: metadata that the Hub reads, how to load it, and the report.

    Args:
        name: of the folder.
        report: of the conversion.
        source: what was converted. A folder isn't named as the base model, which is a name on the Hub.
        is_sentence_transformer: whether its modules lie beside it.
    """
    base_model = None if is_local(source.name) else source.name
    kinds = ["sentence-transformers"] if is_sentence_transformer else []
    metadata = ModelCardData(
        library_name="sentence-transformers" if is_sentence_transformer else "transformers",
        pipeline_tag="sentence-similarity" if is_sentence_transformer else report.head,
        base_model=base_model,
        **_license(source.folder / "README.md"),
        tags=[*kinds, "posenc", report.to_scheme, "custom_code"],
    )
    return render(
        Path(__file__).with_name("model_card.md.jinja"),
        metadata=metadata.to_yaml(),
        name=name,
        base_model=base_model,
        report=report,
        place=HERE,
        auto_class=auto_class(report.head),
        is_sentence_transformer=is_sentence_transformer,
    )


def _license(card: Path) -> dict[str, Any]:
    """The fields of the source's card on its licence; none where there is no whole card."""
    try:
        data = ModelCard.load(card).data.to_dict()
    except Exception:  # what a missing or a broken card raises differs
        return {}
    return {name: data[name] for name in ("license", "license_name", "license_link") if data.get(name)}
