"""From a checkpoint of the BERT family, or of ours, to a PosEnc model that computes the same."""

import torch

from ..model.package_config import PosEncConfig
from .building import Loaded, model_class
from .from_bert import load_bert
from .from_posenc import load_posenc
from .recognition import family_of
from .sources import Source, find_folder, fingerprint, read_config, read_weights


def load(
    source: str,
    *,
    task: str | None = None,
    num_labels: int | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    seed: int = 0,
) -> Loaded:
    """Reads a checkpoint and builds the model that computes what it does, with the scheme that it has.

    Raises:
        UserError: it can't be read, its architecture isn't supported, or a key isn't accounted for.
    """
    if task is not None:
        model_class(task)
    folder = find_folder(source, revision, allow_pickle)
    raw = read_config(folder, source)
    is_ours = raw.get("model_type") == PosEncConfig.model_type
    family = None if is_ours else family_of(raw.get("model_type"), source)  # whatever its weights are
    stored = read_weights(folder, source, allow_pickle)
    tensors = {key: value.float() if value.is_floating_point() else value for key, value in stored.items()}
    dtypes = {value.dtype for value in stored.values() if value.is_floating_point()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    checkpoint = Source(source, folder, raw, tensors, dtype, fingerprint(stored))
    if family is None:
        return load_posenc(checkpoint, task, num_labels, seed)
    return load_bert(checkpoint, family, task, num_labels, seed)
