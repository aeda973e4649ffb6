"""Describes schemes and checkpoints in numbers, without loading weights."""

import functools
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, get_safetensors_metadata, hf_hub_download

from hf_posenc.checkpoint_files import open_weights, weight_files
from hf_posenc.errors import UserError, about_options
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.model.positions import make_position
from hf_posenc.model.scheme_files import TABLE, declared_schemes
from hf_posenc.model.scheme_table import SCHEMES
from hf_posenc.schemes.sources import saved_class


@dataclass(frozen=True)
class SchemeSummary:
    """One row of `hf-posenc schemes`."""

    name: str
    summary: str
    parameters: int
    """At base size: 12 layers, D = 768, 12 heads, 512 positions."""
    max_length: int | None
    cost: str


def describe_schemes() -> list[SchemeSummary]:
    """Describes every scheme of the table, from its class."""
    rows = []
    for name, scheme in SCHEMES.items():
        with torch.device("meta"):
            position = make_position(PosEncConfig.from_preset("base", position_embedding_type=name))
        paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(scheme.__doc__ or "").split("\n\n")]
        cost = next((part for part in paragraphs if part.startswith("Cost")), "")
        rows.append(
            SchemeSummary(
                name=name,
                summary=re.split(r": | \(|\. |\.$", paragraphs[0])[0],
                parameters=sum(parameter.numel() for parameter in position.parameters()),
                max_length=position.max_length,
                cost=re.sub(r"^Costs,? ", "", re.split(r"[;.] |\.$", cost)[0]),
            )
        )
    return rows


@dataclass(frozen=True)
class TrainingRecord:
    """How a checkpoint was made, by its `results.json` and `conversion.json`."""

    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """By split: `test`, `validation`."""
    baselines: dict[str, float] = field(default_factory=dict)
    """Scores of the baselines, in the first of these metrics."""
    warnings: list[str] = field(default_factory=list)
    """Warnings of training about the result."""
    data: str | None = None
    length: str | None = None
    source: str | None = None
    """The checkpoint that it was converted or trained from."""


@dataclass(frozen=True)
class CheckpointSummary:
    """What `hf-posenc inspect` shows."""

    source: str
    architecture: str
    position_embedding_type: str
    position_embedding_kwargs: dict[str, Any]
    rope_parameters: dict[str, Any] | None
    own_code: str | None
    """`module.Class` of a custom scheme that comes with the checkpoint."""
    scheme_loaded: bool
    """Whether that code, if there is any, was trusted; if not, `max_length` isn't known."""
    max_length: int | None
    parameters: int
    position_parameters: int
    dtypes: list[str]
    labels: list[str]
    posenc_version: str | None
    transformers_version: str | None
    code_files: list[str]
    missing_code_files: list[str]
    training: TrainingRecord = field(default_factory=TrainingRecord)


@dataclass(frozen=True)
class _Place:
    """Where a checkpoint's files are: a folder, or a commit on the Hub."""

    source: str
    revision: str | None

    @property
    def is_folder(self) -> bool:
        return Path(self.source).is_dir()

    @functools.cached_property
    def names(self) -> list[str]:
        if self.is_folder:
            return [path.name for path in Path(self.source).iterdir()]
        return HfApi().list_repo_files(self.source, revision=self.revision)

    def path(self, name: str) -> Path:
        """A file, downloaded where it is on the Hub."""
        if self.is_folder:
            return Path(self.source) / name
        return Path(hf_hub_download(self.source, name, revision=self.revision))

    def tensors(self) -> Iterator[tuple[str, int, str]]:
        """Name, size and dtype of each weight, by the headers of the files."""
        if not self.is_folder:
            files = get_safetensors_metadata(self.source, revision=self.revision).files_metadata.values()
            for name, tensor in (item for file in files for item in file.tensors.items()):
                yield name, tensor.parameter_count, tensor.dtype
            return
        paths = [path for name in weight_files(self.source) if (path := self.path(name)).is_file()]
        if not paths:
            raise FileNotFoundError(f"{self.source!r} holds no .safetensors file. Save the model with save_pretrained.")
        for path in paths:
            with open_weights(path) as file:
                for name in file.keys():  # noqa: SIM118  (a safetensors handle isn't a dictionary)
                    tensor = file.get_slice(name)
                    yield name, int(torch.Size(tensor.get_shape()).numel()), tensor.get_dtype()


def inspect_checkpoint(
    source: str, revision: str | None = None, *, trust_remote_code: bool = False
) -> CheckpointSummary:
    """Reads a checkpoint's config and the headers of its weight files, local or on the Hub; loads no weight.

    The code of a custom scheme runs only with `trust_remote_code`.

    Raises:
        OSError: there is no such checkpoint, or it lacks a file of weights.
        UserError: its config or a weight file is damaged, weights are missing, or it is another kind of model.
    """
    values, _ = PosEncConfig.get_config_dict(source, revision=revision or "main")
    if values.get("model_type") != PosEncConfig.model_type:
        raise UserError(f"it is a {values.get('model_type')} model, not a PosEnc one.")
    with about_options():
        config = PosEncConfig.from_pretrained(source, revision=revision or "main", trust_remote_code=trust_remote_code)
    bundled = [name for name in config.position_embedding_type.split("+") if config.has_bundled_code(name)]
    loaded = trust_remote_code or not bundled
    with torch.device("meta"), about_options():
        model = saved_class(config.architectures)(config) if loaded else None
    place = _Place(source, revision)
    tensors = list(place.tensors())
    sizes = {name: size for name, size, _ in tensors}
    if missing := [name for name, _ in model.named_parameters() if name not in sizes] if model is not None else []:
        more = f", ... ({len(missing)})" if len(missing) > 4 else ""
        raise UserError(f"it lacks weights: {', '.join(missing[:4])}{more}. Download or save it anew.")
    if bundled and TABLE in place.names:
        place.path(TABLE)  # it is read, and doesn't run
    declared = declared_schemes(source, {"revision": revision}) if bundled else {}
    own = [declared.get(name) or name for name in bundled]
    references = [
        *config.auto_map.values(),
        f"{TABLE.removesuffix('.py')}.SCHEMES",
        *filter(None, map(declared.get, bundled)),
    ]
    entries = {str(reference).rpartition("--")[2].split(".")[0] + ".py" for reference in references}
    has_labels = config.problem_type != "regression" and any(
        "Classification" in name for name in config.architectures or []
    )
    return CheckpointSummary(
        source=source,
        architecture=", ".join(config.architectures or []),
        position_embedding_type=config.position_embedding_type,
        position_embedding_kwargs=dict(config.position_embedding_kwargs or {}),
        rope_parameters=config.rope_parameters,
        own_code=", ".join(own) or None,
        scheme_loaded=loaded,
        max_length=model.base_model.position.max_length if model is not None else None,
        parameters=sum(sizes.values()),
        position_parameters=sum(n for name, n in sizes.items() if re.match(r"(model\.)?position\.", name)),
        dtypes=sorted({dtype for *_, dtype in tensors}),
        labels=[str(label) for _, label in sorted((config.id2label or {}).items())] if has_labels else [],
        posenc_version=config.posenc_version,
        transformers_version=getattr(config, "transformers_version", None),
        code_files=sorted(name for name in place.names if name.endswith(".py")),
        missing_code_files=sorted(entries - set(place.names)),
        training=_read_training(place),
    )


_SPLITS = {"test": "test_", "validation": "eval_"}
_NO_SCORES = ("runtime", "_per_second", "preparation_time")


def _read_training(place: _Place) -> TrainingRecord:
    """The records of training and conversion; nothing where they aren't as this package writes them."""
    try:
        run, conversion = (
            json.loads(place.path(name).read_text(encoding="utf-8")) if name in place.names else {}
            for name in ("results.json", "conversion.json")
        )
        return _training_record(run, conversion)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return TrainingRecord()


def _training_record(run: dict[str, Any], conversion: dict[str, Any]) -> TrainingRecord:
    metrics, options, assessment = (run.get(name) or {} for name in ("metrics", "arguments", "assessment"))
    scores = {split: _numbers(metrics, prefix) for split, prefix in _SPLITS.items()}
    simplest = "mean" if run.get("problem_type") == "regression" else "majority"
    baselines = _numbers(assessment.get("baselines") or {})
    return TrainingRecord(
        scores={split: values for split, values in scores.items() if values},
        baselines={
            simplest if name == "majority" else name.replace("_", " "): value for name, value in baselines.items()
        },
        warnings=list(assessment.get("warnings") or []),
        data=_data(options.get("data") or {}, run.get("summary") or {}),
        length=_length(run),
        source=conversion.get("source") or (options.get("model") or {}).get("model_name_or_path"),
    )


def _numbers(values: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The scores among values whose names begin so, by what follows."""
    return {
        name.removeprefix(prefix): float(value)
        for name, value in values.items()
        if name.startswith(prefix) and not name.endswith(_NO_SCORES) and isinstance(value, int | float)
    }


def _data(options: dict[str, Any], summary: dict[str, Any]) -> str | None:
    names = [options.get(key) for key in ("dataset_name", "train_file", "validation_file", "test_file")]
    name = next((Path(name).name if name.startswith(("/", ".")) else name for name in names if name), None)
    sizes = ", ".join(f"{split} {count:,}" for split, count in (summary.get("examples") or {}).items())
    return ": ".join(filter(None, (name, sizes, (summary.get("data") or {}).get("line")))) or None


def _length(run: dict[str, Any]) -> str | None:
    """Steps, epochs and time of training, and whose weights these are."""
    history, seconds, best = run.get("history") or [], run.get("seconds"), run.get("best") or {}
    steps, epochs = (max((entry.get(key, 0) for entry in history), default=0) for key in ("step", "epoch"))
    parts = [f"{steps:,} steps" if steps else "", f"{epochs:g} epochs" if epochs else ""]
    if seconds is not None:
        parts.append(f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min")
    if best.get("metric"):
        parts.append(f"weights of epoch {best['epoch']:g}, the best by {best['metric']}")
    return ", ".join(filter(None, parts)) or None
