#!/usr/bin/env python
"""Trains a text classifier with a plain accelerate loop, to read, to copy and to change.

With one seed its numbers are those of run_classification.py:
    python examples/run_classification_no_trainer.py --dataset_name blimp_order --position_embedding_type rope \
        --do_train --do_eval --do_predict --num_train_epochs 4 --output_dir runs/order

Not here: checkpoints to resume from, early stopping, evaluation by steps; run_classification.py has them.
"""

import math
import operator
import time
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from rich import print
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import EvalPrediction, Trainer, get_scheduler, set_seed

from hf_posenc.finetuning import Setup, parse_arguments, run_script, set_up
from hf_posenc.optimizer import scale_position_learning_rates
from hf_posenc.training import RunArguments, UserError, guarded_run, save_run, show_best
from hf_posenc.training.inference import take_off_autocast


@dataclass
class LoopArguments:
    """The options of this loop, by transformers' names. None: chosen by data and model."""

    output_dir: str
    overwrite_output_dir: bool = False
    do_train: bool = False
    do_eval: bool = False
    do_predict: bool = False
    num_train_epochs: float | None = None
    max_steps: int = -1
    learning_rate: float | None = None
    position_learning_rate_factor: float | None = None
    word_learning_rate_factor: float | None = None
    lr_scheduler_type: str = "linear"
    warmup_steps: float = 0.1
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    per_device_train_batch_size: int = 32
    per_device_eval_batch_size: int = 64
    gradient_accumulation_steps: int = 1
    class_weights: str | None = None
    label_smoothing_factor: float = 0.0
    load_best_model_at_end: bool = None  # None: where it is evaluated
    bf16: bool = False
    fp16: bool = False
    use_cpu: bool = False
    seed: int = 42
    disable_tqdm: bool = False


def main() -> None:
    started = time.time()
    data, model, options = parse_arguments(description=__doc__, training_class=LoopArguments)
    if model.lora:
        raise UserError("--lora has no effect in this loop. Use run_classification.py for it.")
    training = RunArguments(**vars(options))
    precision = "bf16" if training.bf16 else "fp16" if training.fp16 else "no"
    accelerator = Accelerator(
        mixed_precision=precision,
        cpu=training.use_cpu,
        step_scheduler_with_optimizer=False,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=training.data_seed),
    )
    setup = set_up(data, model, training)
    if accelerator.is_main_process:
        setup.summary.show()
    set_seed(training.seed)  # as the Trainer does, so that dropout and the order of examples are the same
    setup.model.to(accelerator.device)
    metrics: dict[str, float] = {}
    history: list[dict[str, float]] = []
    logits = None

    def save_model(folder: str) -> None:
        if accelerator.is_main_process:
            accelerator.unwrap_model(setup.model).save_pretrained(folder)
            setup.tokenizer.save_pretrained(folder)

    with guarded_run(training):
        if training.do_train:
            metrics |= train(accelerator, setup, history)
        take_off_autocast(accelerator, setup.model)  # final scores are float32
        if training.do_eval:
            metrics |= evaluate(accelerator, setup, "validation", "eval")[0]
            setup.assess("eval", metrics, history)
        if training.do_predict:
            scores, logits = evaluate(accelerator, setup, "test", "test")
            metrics |= scores
            setup.assess("test", metrics, history)
        save_run(setup, metrics, history, logits, time.time() - started, save_model)
    if accelerator.is_main_process:
        if setup.assessment is not None:
            setup.assessment.show()
        for name, value in metrics.items():
            print(f"{name:32} {value:.4f}")
        print(f"Results and checkpoint are in {training.output_dir}")


def loader(setup: Setup, split: str, batch_size: int, shuffle: bool) -> DataLoader:
    return DataLoader(
        setup.encoded[split],  # type: ignore[arg-type]
        batch_size=batch_size,
        shuffle=shuffle,
        collate_fn=setup.collator,
        num_workers=setup.training.dataloader_num_workers,
        pin_memory=setup.training.dataloader_pin_memory,
    )


def make_optimizer(setup: Setup) -> torch.optim.Optimizer:
    args = setup.training
    # Biases and LayerNorms get no weight decay.
    decayed = set(Trainer.get_decay_parameter_names(None, setup.model))  # type: ignore[arg-type]
    groups = [
        {"params": [p for n, p in setup.model.named_parameters() if (n in decayed) is decay], "weight_decay": rate}
        for decay, rate in ((True, args.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, fused=True)
    scale_position_learning_rates(
        optimizer, setup.model, args.position_learning_rate_factor, words=args.word_learning_rate_factor
    )
    return optimizer


def train(accelerator: Accelerator, setup: Setup, history: list[dict[str, float]]) -> dict[str, float]:
    args, accumulation = setup.training, setup.training.gradient_accumulation_steps
    batches = accelerator.prepare(loader(setup, "train", args.per_device_train_batch_size, shuffle=True))
    optimizer = make_optimizer(setup)
    model, optimizer = accelerator.prepare(setup.model, optimizer)
    updates = math.ceil(len(batches) / accumulation)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * updates)
    schedule = get_scheduler(
        args.lr_scheduler_type,
        optimizer,
        num_warmup_steps=args.get_warmup_steps(steps),
        num_training_steps=steps,
    )
    metric = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
    better, worst = (operator.gt, -math.inf) if args.greater_is_better else (operator.lt, math.inf)
    kept: dict[str, torch.Tensor] = {}
    progress = tqdm(total=steps, disable=args.disable_tqdm or not accelerator.is_main_process)
    total, done = 0.0, 0
    for epoch in range(math.ceil(steps / updates)):
        batches.set_epoch(epoch)
        iterator, epoch_loss, before = iter(batches), 0.0, done
        while done < steps and (group := list(islice(iterator, accumulation))):
            model.train()
            # The labels of all batches and processes, so that accumulation doesn't change the gradient.
            count = torch.stack([(batch["labels"] != -100).sum() for batch in group]).sum()
            count = accelerator.gather(count.to(accelerator.device)).sum()
            for index, batch in enumerate(group):
                labels = batch.pop("labels")
                accelerator.gradient_state._set_sync_gradients(index == len(group) - 1)
                with accelerator.autocast():
                    outputs = model(**batch)
                    loss = setup.loss(outputs, labels, count) * accelerator.num_processes
                accelerator.backward(loss)
                epoch_loss += accelerator.gather(loss.detach()).mean().item()
            if args.max_grad_norm > 0:
                accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            schedule.step()
            model.zero_grad()
            done += 1
            progress.update()
        total += epoch_loss
        scores: dict[str, float] = {}
        at_steps = args.eval_strategy == "steps" and (done == steps or done % args.eval_steps == 0)
        if args.eval_strategy == "epoch" or at_steps:
            scores, _ = evaluate(accelerator, setup, "validation", "eval")
            if args.load_best_model_at_end and better(scores[metric], setup.best["value"] if setup.best else worst):
                kept = {name: value.clone() for name, value in setup.model.state_dict().items()}
                setup.best = {"metric": metric, "value": scores[metric], "step": done, "epoch": epoch + 1}
        history.append({"epoch": epoch + 1, "step": done, "loss": epoch_loss / max(done - before, 1), **scores})
        if accelerator.is_main_process:
            progress.write(", ".join(f"{name} {value:.4g}" for name, value in history[-1].items()))
    progress.close()
    if kept:
        setup.model.load_state_dict(kept)
    show_best(setup)
    return {"train_loss": total / done}


@torch.no_grad()
def evaluate(accelerator: Accelerator, setup: Setup, split: str, prefix: str) -> tuple[dict[str, float], np.ndarray]:
    setup.model.eval()
    logits, labels = [], []
    state = torch.get_rng_state()  # a data loader draws a number when it starts, which training mustn't notice
    for batch in accelerator.prepare(loader(setup, split, setup.training.per_device_eval_batch_size, shuffle=False)):
        target = batch.pop("labels", None)
        with accelerator.autocast():
            outputs = setup.model(**batch)
        logits.append(accelerator.gather_for_metrics(outputs.logits.float()).cpu())
        if target is not None:
            labels.append(accelerator.gather_for_metrics(target).cpu())
    torch.set_rng_state(state)
    joined = torch.cat(logits).numpy()
    if not labels:
        return {}, joined
    scores = setup.compute_metrics(EvalPrediction(predictions=joined, label_ids=torch.cat(labels).numpy()))
    return {f"{prefix}_{name}": value for name, value in scores.items()}, joined


if __name__ == "__main__":
    run_script(main)
