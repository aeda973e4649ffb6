"""Training a masked language model: from text to a checkpoint, through the stock Trainer."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from ..data.columns import remember_columns, remembered_columns
from ..data.options import DataArguments
from ..data.prepared import PreparedData, Use
from ..data.preparing import prepare
from ..errors import UserError
from ..training.arguments import MaskedLMTrainingArguments, ModelArguments
from ..training.loop import run_training
from ..training.masked_lm import MaskAnew, MaskingCollator, join_blocks, mask_once, token_sums, token_weighted_metrics
from ..training.recipe import fill_in_masked_lm
from ..training.run import Setup, TrainingResult
from .loading import MASKED_LM
from .start import begin, choose_metric, make_setup, make_tokenizer, read_data


def train_masked_lm(
    data: DataArguments,
    model: ModelArguments,
    training: MaskedLMTrainingArguments,
    *,
    console: Console | None = None,
) -> TrainingResult:
    """Trains and evaluates a masked language model, as `training.do_train` and `do_eval` say, with the stock Trainer.

    Perplexity is exp of the mean negative log-likelihood over all masked tokens of the validation text, each token
    counting once; the tokens that are masked there are the same in every run on the same tokens: schemes compare.

    Args:
        data: which text; label options have no effect.
        model: which model: a new PosEnc encoder, or a checkpoint (a classifier's encoder gets a new head).
        training: transformers' TrainingArguments and a few more.
        console: where the summary is printed. None: standard output.

    Raises:
        UserError: something in the options or the data is wrong, or the disk is full.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    return run_training(partial(_set_up, data, model, training), training, console)


def _set_up(data: DataArguments, arguments: ModelArguments, training: MaskedLMTrainingArguments) -> Setup:
    if training.do_predict:
        raise UserError("--do-predict: a masked language model has no labels to predict. Use --do-eval.")
    choose_metric(training, ("perplexity", "nll", "accuracy"))
    config = begin(arguments, training, MASKED_LM)
    known = None if training.do_train else remembered_columns(config)
    use = Use(training.do_train, training.do_eval, labelled=False, known=known)
    prepared = prepare(read_data(data, arguments, training), data, use)
    tokenizer = make_tokenizer(arguments, training.resume_from_checkpoint, prepared, data.max_seq_length)
    if tokenizer.mask_token_id is None:
        raise UserError("The tokenizer has no mask token, which a masked language model needs. Name another one.")
    collator = MaskingCollator(tokenizer, training.mlm_probability, training.seed)
    setup = make_setup(
        prepared,
        data,
        arguments,
        training,
        config,
        tokenizer,
        encode=partial(_encode, prepared, training.line_by_line, training.mlm_probability),
        fill=fill_in_masked_lm,
        collator=collator,
        compute_metrics=token_weighted_metrics,
        reduce_logits=token_sums,
        callbacks=[MaskAnew(collator)],
    )
    if training.do_train:
        remember_columns(setup.model.config, prepared.columns)
    return setup


def _encode(
    prepared: PreparedData,
    line_by_line: bool,
    mlm_probability: float,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Mapping[str, Any]:
    """Texts, or blocks of `max_length` tokens of all texts; those to validate on are masked once."""
    encoded = prepared.encode(tokenizer, max_length if line_by_line else 2**31 - 1)
    if not line_by_line:
        encoded = {split: join_blocks(tokens, max_length) for split, tokens in encoded.items()}
    if "validation" in encoded:
        encoded["validation"] = mask_once(encoded["validation"], tokenizer, mlm_probability)
    return encoded
