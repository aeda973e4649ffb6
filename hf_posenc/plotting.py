"""`plot`: draws a positional scheme, new or of a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoints.loading import load_any
from .checkpoints.opening import open_checkpoint
from .errors import UserError, checks_types, require_packages, user_errors
from .files import expanded
from .model.configuration_posenc import PosEncConfig
from .model.scheme_table import SCHEMES
from .options import json_object
from .quiet import without_bars
from .schemes.names import require_scheme
from .schemes.plots import check_picture_path, plot_position, save_figure
from .schemes.scheme_file import register_scheme

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@checks_types
def plot(
    source: str | Path,
    output: str | Path | None = None,
    *,
    max_positions: int | None = None,
    layer: int | None = None,
    size: str = "mini",
    scheme_kwargs: dict[str, Any] | str | None = None,
    scheme_file: str | Path | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> "Figure":
    """Draws what a scheme adds, turns or biases, and what of order the model sees, in at most four panels.

    - Added vectors: what is added to embeddings of zero, and the cosines of all pairs of positions.
    - Rotation: q.k of equal vectors against distance, and that of each entry alone.
    - Bias: for each head, from the middle position, and for all pairs where distance alone doesn't decide. Where logits
      hide tokens: the attention that they leave. Where they depend on content: the deviation over random queries,
      keys and hidden states, and three draws.
    - Attention by distance, mean of places, where there is a bias or a checkpoint is given.
    - What the model sees of order: how much the mean of the hidden states changes when two words of a random text swap
      places, as a share of the change that two new words make.

    A scheme with several effects has a panel for each.

    Args:
        source: a scheme's name, which stands for a new model with the weights of seed 0; or a checkpoint: a folder, or
            a name on the Hub.
        output: the picture to write, which ends in .png, .svg or .pdf; an existing file is replaced. None: none.
        max_positions: how many positions are shown. None: 128, or as many as the scheme has.
        layer: the layer, from 0, of what differs by layer. None: the first that has a bias, or 0.
        size: of the new model, a name of `SIZES`.
        scheme_kwargs: the scheme's own arguments, a dictionary or JSON.
        scheme_file: a Python file with a scheme of your own.
        revision: branch, tag or commit of a checkpoint on the Hub.
        trust_remote_code: run the checkpoint's own code.

    Returns:
        matplotlib's figure, to show or to change.

    Raises:
        UserError: there is no such scheme or checkpoint, an argument is out of range, or matplotlib isn't installed.
    """
    source, output = str(expanded(source)), expanded(output)
    require_packages("A plot", "matplotlib")
    if output is not None:
        check_picture_path(output)
    if scheme_file is not None:
        register_scheme(scheme_file, source)
    kwargs = json_object("scheme_kwargs", scheme_kwargs)
    shown = _model_or_config(source, size, kwargs, revision=revision, trust_remote_code=trust_remote_code)
    figure = plot_position(shown, max_positions=max_positions, layer=layer)
    if output is not None:
        save_figure(figure, output)
    return figure


def _model_or_config(source: str, size: str, scheme_kwargs: dict[str, Any] | None, **loading: Any) -> Any:
    """The configuration of a scheme, or the model of a checkpoint."""
    is_scheme = all(name in SCHEMES for name in source.split("+"))
    if is_scheme or ("/" not in source and not Path(source).exists()):
        require_scheme(source, scheme_kwargs, parameter="source")
        with user_errors():
            return PosEncConfig.from_size(size, position_embedding_type=source, position_embedding_kwargs=scheme_kwargs)
    if scheme_kwargs is not None:
        raise UserError("goes with a scheme's name. A checkpoint has its own.", parameter="scheme_kwargs")
    with without_bars():
        model = load_any(open_checkpoint(source, **loading))
    if not hasattr(model.base_model, "position"):
        kind = f"is a {model.config.model_type} model, not a PosEnc one: it can't be plotted."
        raise UserError(kind, parameter="source", value=source)
    return model
