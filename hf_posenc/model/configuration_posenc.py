"""`PosEncConfig`: everything that shapes a PosEnc encoder, checked before a weight is allocated."""

from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transformers.utils.versions import require_version

POSENC_VERSION = "1.0.0"
"""The version of the code in this folder; recorded in every checkpoint as `posenc_version`."""
MINIMUM_TRANSFORMERS = "5.17"

# Before any import that an older transformers can't satisfy: its user gets one sentence instead of a traceback.
require_version(_needed := f"transformers>={MINIMUM_TRANSFORMERS}", f'Upgrade with: pip install -U "{_needed}"')

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from .scheme_factory import rescaled
from .scheme_math import PROBABILITY, Check, one_of, positive, require, whole
from .scheme_table import AUGMENTATIONS
from .seam import ConfigSupport

if TYPE_CHECKING:
    # Never run, but found by what copies a checkpoint's code: so the files of the model travel with this one.
    from .modeling_posenc import PosEncModel  # noqa: F401

HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
AUTO_MAP = {"AutoConfig": "configuration_posenc.PosEncConfig", "AutoModel": "modeling_posenc.PosEncModel"}
AUTO_MAP |= {f"AutoModelFor{head}": f"modeling_posenc.PosEncFor{head}" for head in HEADS}


def _field(default: Any, check: Check) -> Any:
    return field(default=default, metadata={"check": check})


@strict
class PosEncConfig(PreTrainedConfig):
    """Configuration of a PosEnc encoder: a BERT-shaped body whose positional scheme is one value.

    Args:
        vocab_size (int): number of tokens in the vocabulary.
        hidden_size (int): D, width of the hidden states; a multiple of `num_attention_heads`.
        num_hidden_layers (int): number of layers.
        num_attention_heads (int): H; each head is d = D/H wide.
        intermediate_size (int): width of the feed-forward layer.
        hidden_act (str): activation of the feed-forward layer, a name of `transformers.activations.ACT2FN`.
        mlp_gated (bool): a gated feed-forward network, output(act(intermediate(x)) * up(x)) (Shazeer 2020, arXiv
            2002.05202); with `silu` it is SwiGLU.
        attention_bias (bool): whether the linear layers of attention have biases.
        mlp_bias (bool): whether those of the feed-forward network have; of a gated one the output layer alone.
        hidden_dropout_prob (float): dropout after the embeddings, the attention output and the feed-forward output.
        attention_probs_dropout_prob (float): dropout on attention probabilities. 0 keeps PyTorch's fused kernels.
        layer_norm_eps (float): epsilon of the norms.
        initializer_range (float): standard deviation of the initial weights.
        max_position_embeddings (int): number of positions of schemes that have a table (`learned`), at most 2^24.
            The other schemes take any length.
        type_vocab_size (int): number of token types (sentence A / B). 0: the model has none, `token_type_ids` are
            ignored.
        pad_token_id (int): the padding token; its embedding is zero and gets no gradient.
        embedding_size (int, optional): width of the embeddings, projected to `hidden_size` as in ELECTRA. None: as
            wide as the hidden states.
        position_embedding_type (str): the positional scheme; `hf_posenc.SCHEMES` lists them.
        position_embedding_kwargs (dict, optional): what the scheme's constructor takes beyond the sizes in this
            config. A model writes all that it was built with back, defaults too, so that its checkpoint records it.
        rope_parameters (dict, optional): for `rope` alone, in the form of transformers v5: `rope_type` (`default`,
            `linear`, `dynamic`, `yarn`, `longrope`, `llama3`, `proportional`), `rope_theta`, `partial_rotary_factor`
            and the type's own keys: see `RotaryPosition`. A model writes all of them back.
        position_augmentation (str): how training changes positions, once per sequence and batch; evaluation never does.
            `none`; `shift`: all by the same random number (SHAPE, Kiyono et al. 2021, arXiv 2109.05644); `random`: a
            random sample, in order, of all positions below `position_augmentation_length` (Ruoss et al. 2023, arXiv
            2305.16843), so that long texts have no position that training hasn't seen. A shift has no effect on
            schemes that use distances alone. Without hf_posenc a checkpoint has the one that it was saved with.
        position_augmentation_length (int, optional): augmented positions lie below it. None:
            `max_position_embeddings`. No training sequence may be longer.
        norm_position (str): `pre` (after the embeddings, before each block and at the end), `pre_only` (not after the
            embeddings: ESM-2, EuroBERT), `pre_but_first` (not before the first block: ModernBERT) or `post` (BERT).
        norm_type (str): `layer_norm`, or `rms_norm`: w x / sqrt(mean(x^2) + epsilon) (Zhang 2019, arXiv 1910.07467).
        token_dropout (int, optional): the mask token, of which ESM-2 zeroes the embeddings; all of a sequence are then
            multiplied by .88 / (1 - its share of mask tokens) (Lin et al. 2023, doi 10.1126/science.ade2574).
        scale_embeddings (bool): multiply token embeddings by sqrt(D), as in Vaswani et al. 2017, arXiv 1706.03762.
        classifier_pooling (str): how a sequence becomes one vector: `mean` or `max` over its tokens, `cls` for its
            first token. Padding never counts.
        classifier_hidden_act (str, optional): activation of a dense layer between pooling and classifier (`tanh` as
            in BERT, `gelu`, `relu`, ...). None: no such layer.
        classifier_norm (bool): a norm after that layer and its activation, as in ModernBERT (arXiv 2412.13663).
        classifier_dropout (float, optional): dropout before the classifier. None: `hidden_dropout_prob`.
        label_mean (float): mean m of the numbers that a regression was trained on. Its logits are z s + m, where the
            last layer gives z, and its loss is the squared error in standard units, ((logits - labels) / s)^2. Used
            where `problem_type` is `regression`, for all outputs alike.
        label_scale (float): standard deviation s of these numbers.
        tie_word_embeddings (bool): masked LM: the decoder shares the token embedding.
        unpad_inputs (bool): compute on real tokens only. False: on the whole padded batch (same results, slower).
        posenc_version (str, optional): the version of the code that wrote the checkpoint.

    Raises:
        ValueError: a value is out of range. The message names the value and what is accepted. Where hf_posenc is
            imported, also: a keyword, the scheme or one of its arguments doesn't exist.
        StrictDataclassFieldValidationError: a value has the wrong type.
    """

    model_type = "posenc"
    support = ConfigSupport()  # hf_posenc registers its own here
    from_size: ClassVar[Callable[..., "PosEncConfig"]]  # hf_posenc's, which has the sizes
    __slots__ = ("_origin",)  # hf_posenc's, of schemes that came with a checkpoint; as a slot it isn't in config.json
    # Tensor parallelism, as `tp_plan="auto"` reads it: heads are split, so a bias for all heads is an error.
    base_model_tp_plan = {f"layers.*.{name}": "rowwise" for name in ("attention.dense", "output")}
    base_model_tp_plan |= {f"layers.*.attention.{name}": "colwise" for name in ("query", "key", "value")}
    base_model_tp_plan |= {"layers.*.intermediate": "colwise"}

    vocab_size: int = _field(30522, whole(1, 2**28))
    hidden_size: int = _field(768, whole(1, 2**17))
    num_hidden_layers: int = _field(12, whole(1, 2**12))
    num_attention_heads: int = _field(12, whole(1, 2**12))
    intermediate_size: int = _field(3072, whole(1, 2**20))
    hidden_act: str = _field("gelu", one_of(*ACT2FN))
    mlp_gated: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    hidden_dropout_prob: float | int = _field(0.1, PROBABILITY)
    attention_probs_dropout_prob: float | int = _field(0.0, PROBABILITY)
    layer_norm_eps: float = _field(1e-12, positive())
    initializer_range: float = _field(0.02, positive())
    max_position_embeddings: int = _field(512, whole())
    type_vocab_size: int = _field(2, whole(0, 2**20))
    pad_token_id: int | None = 0
    embedding_size: int | None = _field(None, whole(1, 2**17))
    position_embedding_type: str = "rope"
    position_embedding_kwargs: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    position_augmentation: str = _field("none", one_of("none", *AUGMENTATIONS))
    position_augmentation_length: int | None = _field(None, whole())
    norm_position: str = _field("pre", one_of("pre", "pre_only", "pre_but_first", "post"))
    norm_type: str = _field("layer_norm", one_of("layer_norm", "rms_norm"))
    token_dropout: int | None = _field(None, whole(0, 2**28))
    scale_embeddings: bool = False
    classifier_pooling: str = _field("mean", one_of("mean", "cls", "max"))
    classifier_hidden_act: str | None = _field(None, one_of(*ACT2FN))
    classifier_norm: bool = False
    classifier_dropout: float | int | None = _field(None, PROBABILITY)
    problem_type: str | None = _field(  # type: ignore[assignment]  # transformers lets any word pass
        None, one_of("regression", "single_label_classification", "multi_label_classification")
    )
    label_mean: float | int = 0.0
    label_scale: float | int = _field(1.0, positive())
    tie_word_embeddings: bool = True
    unpad_inputs: bool = True
    posenc_version: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        # All heads, not the saved class alone: a classifier's checkpoint must load through AutoModel too. A map that
        # came with the file is kept: it names the repository of the code.
        self.support.prepare(self, kwargs)
        self.auto_map = dict(kwargs.pop("auto_map", None) or AUTO_MAP)
        super().__post_init__(**kwargs)
        if self.mlp_gated:
            self.base_model_tp_plan = self.base_model_tp_plan | {"layers.*.up": "colwise"}  # type: ignore[misc]
        self.posenc_version = self.posenc_version or POSENC_VERSION
        self.check()

    def __setattr__(self, name: str, value: Any) -> None:
        """Checks a field as the constructor does. Any other name may be set too, as on every transformers config."""
        check = self.__dataclass_fields__[name].metadata.get("check") if name in self.__dataclass_fields__ else None
        if check is not None and value is not None:
            require(name, value, check)
        super().__setattr__(name, value)

    def validate_rope(self) -> None:
        """Does nothing: the scheme itself checks `rope_parameters`, and raises where transformers would warn."""

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Leaves `rope_parameters` as they are; PreTrainedConfig's own would fill them for every scheme."""
        return kwargs

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Reads a checkpoint's configuration; with `trust_remote_code=True` also the code of its author's own scheme.

        A model can then be built from the configuration alone. (Where hf_posenc is imported, transformers'
        `AutoConfig` doesn't pass `trust_remote_code` on, so its configurations lack that code.)

        Raises:
            ValueError: that code can't be loaded; or what transformers raises.
        """
        source = str(pretrained_model_name_or_path)
        with cls.support.loading(source, kwargs, of_model=False):
            kwargs.pop("trust_remote_code", None)
            return super().from_pretrained(source, *args, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """The configuration of a file, with `kwargs` in place of its values; a new scaling of RoPE keeps the angles."""
        values = cls.support.values_of_file(config_dict, kwargs)
        if "rope_parameters" in kwargs:
            values["rope_parameters"] = rescaled(values.get("rope_parameters"), kwargs.pop("rope_parameters"))
        return super().from_dict(values, **kwargs)

    def check(self) -> None:
        """Checks the fields against each other: the constructor does, and the model and `save_pretrained` do it again.

        Raises:
            ValueError: fields contradict each other.
        """
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} isn't a multiple of num_attention_heads={self.num_attention_heads}."
            )
        self.check_padding()
        self.support.check(self)

    def check_padding(self) -> None:
        """Checks the padding token; at each call of a model too, since the Trainer sets the tokenizer's later.

        Raises:
            ValueError: it is outside the vocabulary.
        """
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id={self.pad_token_id} is outside the vocabulary of {self.vocab_size} tokens. Give the "
                "tokenizer's, or None if it has no padding token. If the tokenizer has grown, so must the model: "
                "model.resize_token_embeddings(len(tokenizer))."
            )

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Writes config.json and the code that it needs, stamped with this code's version; or nothing, and raises."""
        self.check()
        files = self.support.code_files(self, Path(save_directory))
        self.posenc_version = POSENC_VERSION
        self.auto_map = dict(AUTO_MAP)  # the code lies beside the file, wherever the config came from
        super().save_pretrained(str(save_directory))
        for name, text in files.items():
            Path(save_directory, name).write_bytes(text.encode())
        if push_to_hub:  # here: transformers would send what its own `save_pretrained` writes
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)

    @property
    def embedding_width(self) -> int:
        """Width of token and added positional embeddings."""
        return self.embedding_size if self.embedding_size is not None else self.hidden_size

    @property
    def augmentation_length(self) -> int:
        """Augmented positions lie below this."""
        return self.position_augmentation_length or self.max_position_embeddings

    @property
    def token_rms(self) -> float:
        """Root mean square of the token embeddings at the start; added schemes start with the same."""
        return self.initializer_range * (self.embedding_width**0.5 if self.scale_embeddings else 1.0)
