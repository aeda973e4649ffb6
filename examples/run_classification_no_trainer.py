#!/usr/bin/env python
"""Trains a text classifier with a plain accelerate loop, to read and to change.

The options are those of run_classification.py, as far as the loop has them, and with one seed so are the numbers:
    python examples/run_classification_no_trainer.py --dataset_name blimp_order --position_embedding_type rope \
        --do_train --do_eval --do_predict --num_train_epochs 4 --output_dir runs/order

Not here: checkpoints to resume from, early stopping, evaluation by steps, streaming; run_classification.py has them.
"""

import math
import operator
import sys
import time
from dataclasses import fields
from itertools import islice

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from rich import print
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import EvalPrediction, Trainer, get_scheduler, set_seed

from hf_posenc.optimizer import speed_up_positions
from hf_posenc.training import (
    ClassificationTrainingArguments,
    Setup,
    UserError,
    ending_clearly,
    epoch_metrics,
    parse_arguments,
    run_script,
    save_run,
    set_up,
    show_best,
)

# What the loop below reads of TrainingArguments. Any other would have no effect, so it is refused.
KNOWN = {
    "output_dir",
    "overwrite_output_dir",
    "do_train",
    "do_eval",
    "do_predict",
    "seed",
    "data_seed",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "weight_decay",
    "position_learning_rate_factor",
    "word_learning_rate_factor",
    "baseline",
    "errors_shown",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "max_grad_norm",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "bf16",
    "fp16",
    "use_cpu",
    "label_smoothing_factor",
    "class_weights",
    "license",
    "disable_tqdm",
    "eval_strategy",
    "dataloader_pin_memory",
    "dataloader_num_workers",
    "logging_strategy",
    "save_strategy",
    "optim",
    "local_rank",
    "load_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
    "score_test",
}


def refuse_unknown(argv: list[str]) -> None:
    given = {word[2:].partition("=")[0] for word in argv if word.startswith("--")}
    ignored = given & ({item.name for item in fields(ClassificationTrainingArguments)} - KNOWN | {"streaming"})
    if ignored:
        raise UserError(f"--{min(ignored)} has no effect in this loop. Use run_classification.py for it.")


def main() -> None:
    started = time.time()
    data, model, training = parse_arguments(description=__doc__)
    refuse_unknown(sys.argv[1:])
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

    with ending_clearly(training):
        if training.do_train:
            metrics |= train(accelerator, setup, history)
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


def train(accelerator: Accelerator, setup: Setup, history: list[dict[str, float]]) -> dict[str, float]:
    args, accumulation = setup.training, setup.training.gradient_accumulation_steps
    batches = accelerator.prepare(loader(setup, "train", args.per_device_train_batch_size, shuffle=True))
    # Biases and LayerNorms get no weight decay.
    decayed = set(Trainer.get_decay_parameter_names(None, setup.model))  # type: ignore[arg-type]
    groups = [
        {"params": [p for n, p in setup.model.named_parameters() if (n in decayed) is decay], "weight_decay": rate}
        for decay, rate in ((True, args.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=args.learning_rate, betas=(args.adam_beta1, args.adam_beta2), eps=args.adam_epsilon, fused=True
    )
    speed_up_positions(optimizer, setup.model, args.position_learning_rate_factor, words=args.word_learning_rate_factor)
    model, optimizer = accelerator.prepare(setup.model, optimizer)
    updates = math.ceil(len(batches) / accumulation)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * updates)
    schedule = get_scheduler(
        args.lr_scheduler_type,
        optimizer,
        num_warmup_steps=args.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=args.lr_scheduler_kwargs,
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
        scores = epoch_metrics(setup)
        at_steps = args.eval_strategy == "steps" and (done == steps or done % args.eval_steps == 0)
        if args.eval_strategy == "epoch" or at_steps:
            scores |= evaluate(accelerator, setup, "validation", "eval")[0]
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
    found = setup.compute_metrics(EvalPrediction(predictions=joined, label_ids=torch.cat(labels).numpy()))
    return {f"{prefix}_{name}": value for name, value in found.items()}, joined


if __name__ == "__main__":
    run_script(main)
