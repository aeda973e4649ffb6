"""The stock Trainer with our loss and groups of learning rates, and low-rank changes."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from rich.console import Console
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK, TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

from ..checkpoints.tokenizers import without_cuts
from ..errors import require_packages, spell
from ..optimizer import scale_position_learning_rates
from ..progress import Bar, LogLines, is_live, refuse_divergence, refuse_infinite
from .metrics import ClassificationLoss, loss_and_metrics
from .recipe import Recipe

logger = logging.get_logger(__name__)

_LORA_RANK = 16


class RunTrainer(Trainer):
    """The stock Trainer; it overrides public methods, and the one that gradient norms come from.

    Attributes:
        has_ended: it goes on from a checkpoint of the last step: none is trained, and the best weights are loaded.
    """

    args: Recipe
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    has_ended = False
    _look_at_norm: Callable[[], None] | None = None
    """Refuses the gradient norm of the last step, if it hasn't been looked at."""

    def create_accelerator_and_postprocess(self) -> None:
        """With `torch_compile` compiles each layer by itself, for any number of tokens.

        A whole model would be one graph, which is padded, and a new one for some lengths.
        """
        super().create_accelerator_and_postprocess()
        plugin = self.accelerator.state.dynamo_plugin
        plugin.use_regional_compilation = plugin.dynamic = True

    def set_initial_training_values(self, args: TrainingArguments, dataloader: Any) -> tuple[Any, ...]:
        """Trains no epoch where the run has ended: the stock Trainer looks for its last step only after a step."""
        epochs, *others = super().set_initial_training_values(args, dataloader)
        return (0 if self.has_ended else epochs, *others)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Gives positions and new word embeddings their own learning rates."""
        if self.optimizer is None:
            super().create_optimizer(model)
            trained = self.model if model is None else model
            scale_position_learning_rates(self.optimizer, trained, self.args.position_rate, self.args.word_rate)
        return self.optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Makes PyTorch's one-cycle schedule too (Smith and Topin 2017, arXiv 1708.07120); it rises in the warm-up.

        With `auto_find_batch_size` it is made anew for each number of steps, from the same peaks.
        """
        if self.args.one_cycle:
            groups = (self.optimizer if optimizer is None else optimizer).param_groups
            warmup = self.args.get_warmup_steps(num_training_steps)
            schedule: Any = torch.optim.lr_scheduler.OneCycleLR(
                self.optimizer if optimizer is None else optimizer,
                max_lr=[group.get("max_lr", group["lr"]) for group in groups],
                total_steps=num_training_steps + 1,  # the Trainer advances it after the last step too
                pct_start=min(max(warmup, 1) / num_training_steps, 1.0),
            )
            self.lr_scheduler = schedule
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(self, *given: Any, **options: Any) -> torch.Tensor:
        """Ends the run if the loss isn't finite; one of several processes leaves that to the norm, which all have.

        A GPU isn't kept waiting: the stock Trainer looks at this loss too, and a norm has been computed by then.
        """
        loss = super().training_step(*given, **options)
        if self._look_at_norm is not None:
            self._look_at_norm()
        if self.args.world_size == 1:
            self._later("loss", loss)()
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Ends the run if the gradient norm isn't finite: on a CPU now, on a GPU after the next step's loss.

        In float16 it often isn't: the loss was scaled too far, and the step is left out.
        """
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None and self.accelerator.scaler is None:  # DeepSpeed may have none
            self._look_at_norm = self._later("gradient norm", norm)
            if self.args.use_cpu:
                self._look_at_norm()
        return norm

    def _later(self, name: str, value: Any) -> Callable[[], None]:
        """A function that raises Diverged if a value of this step isn't finite."""
        step, rate = self.state.global_step + 1, self.optimizer.param_groups[0]["lr"]
        return partial(refuse_infinite, name, value, step, rate, self.args)

    def evaluate(self, *given: Any, **options: Any) -> dict[str, float]:
        """Evaluates finite weights alone, and restores torch's random state, of which its data loader draws a number.

        Otherwise a run resumed from a checkpoint saved before that evaluation would draw other dropout masks.
        """
        refuse_divergence(self.state.global_step, self.model, self.args)
        with torch.random.fork_rng(devices=[]):
            return super().evaluate(*given, **options)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves finite weights alone, the tokenizer without a batch's settings, and no pickle of the arguments."""
        step, folder = self.state.global_step, Path(output_dir or str(self.args.output_dir))
        refuse_divergence(step, self.model, self.args)
        without_cuts(cast(Any, self.processing_class))
        try:
            super().save_model(str(folder), _internal_call=_internal_call)
        finally:
            if self.args.should_save:
                (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Mapping[str, Dataset],
    recipe: Recipe,
    loss: ClassificationLoss,
    console: Console,
) -> RunTrainer:
    """The Trainer of a run."""
    trainer = RunTrainer(
        model=model,
        args=recipe,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if recipe.fp16 else None),
        train_dataset=encoded["train"],
        eval_dataset=encoded.get("validation"),
        processing_class=tokenizer,
        compute_loss_func=loss,
        compute_metrics=lambda output: loss_and_metrics(loss, *cast(Any, (output.predictions, output.label_ids))),
        preprocess_logits_for_metrics=lambda outputs, _: outputs[0] if isinstance(outputs, tuple) else outputs,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(DEFAULT_PROGRESS_CALLBACK)
    if not recipe.disable_tqdm and is_live(console):
        trainer.add_callback(Bar())
    trainer.add_callback(LogLines(console))
    if recipe.patience is not None:
        trainer.add_callback(Patience(recipe.patience, recipe.least_gain))
    return trainer


class Patience(EarlyStoppingCallback):
    """The stock callback, which ends no run before the recipe's `least_steps`: it may learn late."""

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, *given: Any, **named: Any) -> None:
        """Counts every evaluation, and decides after so many steps."""
        stops = control.should_training_stop
        super().on_evaluate(args, state, control, *given, **named)
        if state.global_step < args.least_steps:
            control.should_training_stop = stops


def add_lora(model: PreTrainedModel) -> None:
    """Adds low-rank changes (Hu et al. 2021, arXiv 2106.09685), which alone are trained, with scheme and classifier.

    Raises:
        UserError: PEFT isn't installed.
    """
    require_packages(spell("lora", True), "peft")
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=_LORA_RANK,
        lora_alpha=2 * _LORA_RANK,
        target_modules=["query", "key", "value", "dense"],
        # The head and the scheme's own matrices (tupe has some of these names) are trained whole.
        exclude_modules=r"(.*\.)?position\..*|classifier\..*",
    )
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        if name.startswith("classifier.") or ".position." in name:
            parameter.requires_grad_(True)


def merge_lora(model: torch.nn.Module) -> None:
    """Merges low-rank changes, if there are any, into the model, which becomes an ordinary one."""
    for name, module in list(model.named_modules()):
        if hasattr(module, "get_base_layer"):
            module.merge()
            model.set_submodule(name, module.get_base_layer())
    model.requires_grad_(True)
