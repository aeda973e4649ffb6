"""The card of a published checkpoint: its README, with metadata and a section on loading added."""

import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from ..errors import UserError, one_line
from ..markdown import HERE, render
from ..model.configuration_posenc import MINIMUM_TRANSFORMERS
from ..tasks import CLASSES
from .collecting import Upload

_BEGIN, _END = "<!-- hf-posenc publish -->", "<!-- end of hf-posenc publish -->"


@dataclass(frozen=True)
class CardFields:
    """Metadata of a card that its author gives; what is None or empty stays as the folder's card has it."""

    license: str | None = None
    language: tuple[str, ...] = ()
    dataset: tuple[str, ...] = ()


def published_card(checkpoint: Upload, repo_id: str, revision: str, given: CardFields = CardFields()) -> str:
    """The README.md that is sent to the Hub: the folder's text, complete metadata, and a section on loading.

    Args:
        checkpoint: without a README in its folder one is begun.
        repo_id: where it goes.
        revision: the commit that was loaded back, to pin.
        given: metadata that its author gives.

    Raises:
        UserError: README.md has broken metadata.
    """
    path, model = checkpoint.source / "README.md", checkpoint.model
    scheme = model.config.position_embedding_type
    new = f"# Model\n\nA PosEnc encoder (`{type(model).__name__}`) whose positional scheme is `{scheme}`.\n"
    try:
        card = ModelCard(
            path.read_text(encoding="utf-8") if path.is_file() else f"---\nlibrary_name: transformers\n---\n{new}"
        )
    except Exception as error:  # of whichever YAML library
        raise UserError(f"{str(path)!r} has broken metadata: {one_line(error)}. Mend or delete it.") from error
    data: ModelCardData = card.data  # type: ignore[assignment]
    old = data.model_name or checkpoint.source.resolve().name
    name = repo_id.rpartition("/")[2]
    data.library_name = data.library_name or "transformers"
    data.pipeline_tag = data.pipeline_tag or CLASSES.get(type(model).__name__)
    data.tags = list(dict.fromkeys([*(data.tags or []), "posenc", scheme, "custom_code"]))
    data.model_name = name if data.eval_results else None
    earlier = getattr(data, "verified_commit", None)
    data.verified_commit = revision  # type: ignore[attr-defined]
    if given.license not in (None, data.license):  # another one's name and link were of the old one
        data.license, data.license_name, data.license_link = given.license, None, None
    data.language = [*given.language] or data.language
    data.datasets = [*given.dataset] or data.datasets
    text = re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}\n?", "", card.text, flags=re.DOTALL)
    text = re.sub(rf"\A\s*# {re.escape(old)}\n", f"# {name}\n", text).rstrip()
    pinned = f'"{repo_id}", revision="{revision}"'
    # Where an earlier publish pinned this folder, perhaps as another repository, or its training left a place.
    former = rf'|"[^"/]+/[^"/]+", revision="{re.escape(str(earlier))}"' if earlier else ""
    text = re.sub(rf'"{HERE}"|"{re.escape(repo_id)}", revision="[^"]*"{former}', lambda _: pinned, text)
    loading = render(
        Path(__file__).with_name("loading.md.jinja"),
        repo_id=repo_id,
        revision=revision,
        auto_class=checkpoint.auto_class,
        config=model.config,
        own_code=checkpoint.own_code,
        limit=model.base_model.position.max_length,
        minimum=MINIMUM_TRANSFORMERS,
    )
    card.text = f"{text}\n\n{_BEGIN}\n{loading}{_END}\n"
    return card.content
