"""Sources of plots: a scheme's name, a config, a model, a checkpoint, or a bare scheme."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from hf_posenc.errors import UserError, is_local, user_errors
from hf_posenc.model import modeling_posenc
from hf_posenc.model.modeling_posenc import PosEncModel, PosEncPreTrainedModel
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.model.position_base import PositionScheme
from hf_posenc.model.positions import make_position
from hf_posenc.model.scheme_table import SCHEMES
from hf_posenc.tasks import CLASSES

Source = str | PosEncConfig | PosEncPreTrainedModel | PositionScheme
"""What can be plotted: a scheme's name, a config, a model, a checkpoint's folder or Hub name, or a scheme."""


@dataclass(frozen=True)
class Subject:
    """A scheme in float32 on the CPU, and what its hooks can't tell."""

    label: str
    weights: str
    scheme: PositionScheme
    config: PosEncConfig | None


def read_source(source: Source, config: PosEncConfig | None = None, revision: str | None = None) -> Subject:
    """The scheme that a source names: see `position_panels`."""
    if isinstance(source, PositionScheme):
        name = getattr(source, "name", type(source).__name__)
        return Subject(name, "weights as they are", _detached(source), config)
    if isinstance(source, PosEncPreTrainedModel):
        scheme = _detached(cast(PositionScheme, source.base_model.position))
        own_config = cast(PosEncConfig, source.config)
        return Subject(
            f"{own_config.position_embedding_type} in {type(source).__name__}", "its weights", scheme, own_config
        )
    if isinstance(source, PosEncConfig):
        config = copy.deepcopy(source)  # building the scheme completes its arguments
        return Subject(config.position_embedding_type, "initial weights", initial_scheme(config), config)
    if not isinstance(source, str):
        raise UserError(
            f"source={source!r} can't be plotted. Give a scheme's name, a PosEncConfig, a PosEnc model, a checkpoint's "
            "folder or Hub name, or a PositionScheme."
        )
    if is_scheme(source):
        return read_source(PosEncConfig.from_preset("base", position_embedding_type=source))
    return _read_checkpoint(source, revision)


def is_scheme(name: str) -> bool:
    """Whether a name is that of a scheme, or of schemes joined by +, and not of a checkpoint."""
    return all(part in SCHEMES for part in name.split("+"))


def _read_checkpoint(source: str, revision: str | None) -> Subject:
    folder = Path(source).expanduser()
    local = is_local(source)
    if (local and not (folder / "config.json").is_file()) or (not local and "/" not in source):
        raise UserError(
            f"{source!r} is neither a scheme ({', '.join(SCHEMES)}) nor a checkpoint. Give one of these, a folder "
            "with config.json and weights, or a name on the Hub such as user/model."
        )
    place = str(folder) if local else source
    values, _ = PosEncConfig.get_config_dict(place, revision=revision or "main")
    if values.get("model_type") != PosEncConfig.model_type:
        raise UserError(f"{source!r} is a {values.get('model_type')} model, not a PosEnc one: it can't be plotted.")
    name = next(iter(values.get("architectures") or ()), "")
    # Another class than the saved one would report its head as unexpected, or lack one.
    saved = getattr(modeling_posenc, name if name in CLASSES else "PosEncModel")
    model, loading = saved.from_pretrained(place, revision=revision or "main", output_loading_info=True)
    missing = [name for name in loading["missing_keys"] if re.match(r"(model\.)?position\.", name)]
    if missing:
        raise UserError(f"{source!r} lacks weights of its scheme: {', '.join(missing)}. Save or copy it anew.")
    numbers = model.base_model.position.named_parameters()
    if bad := [name for name, weight in numbers if not bool(weight.isfinite().all())]:
        raise UserError(f"{source!r} has NaN or infinity in position.{bad[0]}: its training diverged.")
    label = f"{model.config.position_embedding_type} in {folder.resolve().name if local else source}"
    return Subject(label, "trained weights", _detached(model.base_model.position), model.config)


def _detached(scheme: PositionScheme) -> PositionScheme:
    """A copy in float32 on the CPU, without dropout; the original isn't touched."""
    if any(parameter.device.type == "meta" for parameter in scheme.parameters()):
        raise UserError(f"{type(scheme).__name__} has no weights yet: it is on the meta device. Load it first.")
    return copy.deepcopy(scheme).to(device="cpu", dtype=torch.float32).eval()


@torch.no_grad()
def initial_scheme(config: PosEncConfig, seed: int = 0) -> PositionScheme:
    """A config's scheme with the weights that a new model gives it, drawn from a seed, in evaluation mode."""
    with torch.device("meta"), user_errors():
        model: Any = PosEncModel(copy.deepcopy(config))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        scheme = make_position(config)
        for module in scheme.modules():
            model._init_weights(module)
        scheme.init_weights(config.initializer_range)
    return scheme.eval()


def heading(subject: Subject) -> str:
    """The title of a plot: scheme, sizes, and the origin of the weights."""
    config = subject.config
    parts = [subject.label]
    if config is not None:
        sizes = f"D = {config.hidden_size}, {config.num_attention_heads} heads"
        parts.append(f"{sizes}, {config.num_hidden_layers} layers")
    if any(True for _ in subject.scheme.parameters()):
        parts.append(subject.weights)
    return " · ".join(parts)


def size_of(subject: Subject, name: str, from_config: Callable[[PosEncConfig], int]) -> int:
    """A size of the encoder: from the config, or where there is none from the scheme's attribute of that name."""
    if subject.config is not None:
        return from_config(subject.config)
    size = getattr(subject.scheme, name, None)
    if not isinstance(size, int):
        raise UserError(
            f"A {type(subject.scheme).__name__} alone doesn't say its {name}. Give config=, the config that it was "
            "built with, or plot the model."
        )
    return size
