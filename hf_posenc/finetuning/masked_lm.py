"""Training a masked language model: from text to a checkpoint, through the stock Trainer."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from ..data.columns import remember_columns, remembered_columns
from ..data.options import DataArguments
from ..data.prepared import PreparedData, Use
from ..errors import UserError
from ..training.arguments import MaskedLMTrainingArguments, ModelArguments
from ..training.masked_lm import MaskAnew, MaskingCollator, join_blocks, mask_once, token_sums, token_weighted_metrics
from ..training.progress import main_console, without_bars, working
from ..training.recipe import default_learning_rate
from ..training.report import Summary
from ..training.run import Run, TrainingResult
from ..training.trainer import RunTrainer, add_callbacks_and_schedule, carry_out
from .start import Start, check_best_metric, introduce


@without_bars()
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
    started = time.time()
    console = main_console(training, console)
    _check_options(data, training)
    with working("Preparing: data, tokenizer, model", console):
        run, encoded = _set_up(data, model, training)
    introduce(run, console)
    collator = MaskingCollator(run.tokenizer, training.mlm_probability, training.seed)
    trainer = RunTrainer(
        run,
        encoded,
        console,
        data_collator=collator,
        compute_metrics=token_weighted_metrics,
        preprocess_logits_for_metrics=token_sums,
    )
    trainer.add_callback(MaskAnew(collator))
    add_callbacks_and_schedule(trainer)

    def score(metrics: dict[str, float]) -> None:
        if training.do_eval:
            metrics |= trainer.evaluate()

    return carry_out(trainer, score, started, console)


def _check_options(data: DataArguments, training: MaskedLMTrainingArguments) -> None:
    if not (training.do_train or training.do_eval or training.do_predict):
        raise UserError("Nothing to do. Give at least one of --do-train, --do-eval.")
    if training.do_predict:
        raise UserError("--do-predict: a masked language model has no labels to predict. Use --do-eval.")
    if data.streaming:
        raise UserError("--streaming is for text classification; masked language models read their text whole.")
    check_best_metric(training, ("perplexity", "nll", "accuracy"))


def _set_up(
    data: DataArguments, model: ModelArguments, training: MaskedLMTrainingArguments
) -> tuple[Run, Mapping[str, Any]]:
    start = Start.check(data, model, training, "ForMaskedLM")
    known = None if training.do_train else remembered_columns(start.config)
    prepared = start.prepare(None, Use(training.do_train, training.do_eval, labelled=False, known=known))
    tokenizer = start.make_tokenizer(prepared)
    if tokenizer.mask_token_id is None:
        raise UserError("The tokenizer has no mask token, which a masked language model needs. Name another one.")
    masked = MaskedText(**vars(prepared), line_by_line=training.line_by_line, mlm_probability=training.mlm_probability)
    run, encoded = start.make_run(masked, tokenizer, _fill_in)
    if training.do_train:
        remember_columns(run.model.config, prepared.columns)
    return run, encoded


def _fill_in(
    training: MaskedLMTrainingArguments, arguments: ModelArguments, summary: Summary, hidden_size: int
) -> None:
    """Sets the learning rate and the epochs, where they aren't given."""
    if training.learning_rate is None:
        training.learning_rate = default_learning_rate(arguments.model_name_or_path is not None, hidden_size)
    if training.num_train_epochs is None:
        training.num_train_epochs = 3


@dataclass(frozen=True)
class MaskedText(PreparedData):
    """Text whose validation rows are masked once."""

    line_by_line: bool = True
    """Each text is an input; else all are joined and cut into blocks."""
    mlm_probability: float = 0.15

    def encode(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> dict[str, Dataset]:
        """All splits: texts, or blocks of `max_length` tokens."""
        encoded = super().encode(tokenizer, max_length if self.line_by_line else 2**31 - 1)
        if not self.line_by_line:
            encoded = {split: join_blocks(tokens, max_length) for split, tokens in encoded.items()}
        if "validation" in encoded:
            encoded["validation"] = mask_once(encoded["validation"], tokenizer, self.mlm_probability)
        return encoded
