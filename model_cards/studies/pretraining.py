"""Does the scheme matter after equal pretraining? Masked language models of nine schemes from scratch, on equal text.

    python -m model_cards.studies.pretraining --data FOLDER --work FOLDER --output model_cards/results/pretraining
    python -m model_cards.studies.pretraining --status

A part is one model: a scheme, a seed and a rate, trained to a number of tokens. Each is one file in the folder of
parts, written as it ends; a checkpoint is written every 500 steps, and the same command goes on where one stopped. Any
number of processes, of one thread each, may share the folders: a part is trained by the one that holds its lock.

Steps compute in bfloat16 autocast, on one thread with AMX 1.3 times as fast as float32; reported losses in float32.

All models see windows of 128 tokens of the deduplicated training parts of five data sets, never across documents. A
fifth of the tokens is masked, and only these are decoded. The rate is constant after its warm-up, so that the curve of
a long run holds that of a short one. Initial scale, number of tokens and rates are chosen with development seeds on the
loss in one half of the held-out novels; the other half is reported, for other seeds. `pretraining_plan` holds what is
trained.
"""

import argparse
import math
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from hf_posenc import PosEncConfig, PosEncForMaskedLM, scale_position_learning_rates
from hf_posenc.errors import UserError, run_script
from hf_posenc.files import write_json, written_whole
from hf_posenc.machine import commit, processor, versions
from model_cards.studies.parts import Cluster, data_folder
from model_cards.studies.pretraining_plan import MILLION, STARTS, Part, Results, next_parts
from model_cards.studies.pretraining_text import CONTENT, HELD_OUT_BLOCKS, LENGTH, Text, mask_of

SIZE: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
BATCH = 16
WARMUP = 200
EVALUATE_EVERY, SAVE_EVERY = 250, 500
"""Steps of 2,048 tokens."""


def masked_losses(model: PosEncForMaskedLM, tokenizer: Any, windows: Tensor, masked: Tensor) -> Tensor:
    """The losses (M,) at the masked places of windows without [CLS] and [SEP], in order."""
    inputs = windows.masked_fill(masked, tokenizer.mask_token_id)
    ends = [inputs.new_full((len(inputs), 1), token) for token in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
    hidden_states = model.model(input_ids=torch.cat([ends[0], inputs, ends[1]], dim=1)).last_hidden_state[:, 1:-1]
    logits = model.lm_head(hidden_states[masked])
    return cross_entropy(logits.float(), windows[masked], reduction="none")


@torch.no_grad()
def held_out_loss(model: PosEncForMaskedLM, tokenizer: Any, blocks: Tensor, length: int = LENGTH) -> float:
    """The mean loss in blocks that are read in windows of a length; tokens and masks are the same for all lengths."""
    windows = blocks.unflatten(1, (-1, CONTENT * length // LENGTH)).flatten(0, 1)
    masked = mask_of(blocks, 0).view_as(windows)
    was_training = model.training
    model.eval()
    size = max(1, BATCH * LENGTH // length)
    batches = zip(windows.split(size), masked.split(size), strict=True)
    losses = torch.cat([masked_losses(model, tokenizer, *batch) for batch in batches])
    model.train(was_training)
    return float(losses.double().mean())


class Training:
    """One model in training, which goes on from its checkpoint.

    Args:
        part: what is trained.
        text: the windows.
        folder: for the checkpoint `last.pt`, and for the model at the end.
    """

    def __init__(self, part: Part, text: Text, folder: Path) -> None:
        self.part, self.text, self.folder = part, text, folder
        torch.manual_seed(part.seed)
        config = PosEncConfig(
            **SIZE,
            **STARTS[part.start],
            vocab_size=len(text.tokenizer),
            max_position_embeddings=LENGTH,
            type_vocab_size=0,
            hidden_dropout_prob=0.0,
            position_embedding_type=part.scheme,
            pad_token_id=text.tokenizer.pad_token_id,
        )
        self.model = PosEncForMaskedLM(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), part.rate, betas=(0.9, 0.98), weight_decay=0.01)
        scale_position_learning_rates(self.optimizer, self.model)
        self.schedule = LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / WARMUP))
        self.step, self.seconds, self.curve = 0, 0.0, list[dict[str, float]]()
        if (folder / "last.pt").is_file():
            self._load()

    def _stateful(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def _save(self) -> None:
        state = {name: item.state_dict() for name, item in self._stateful().items()}
        with written_whole(self.folder / "last.pt") as path:
            torch.save(state | {"step": self.step, "seconds": self.seconds, "curve": self.curve}, path)

    def _load(self) -> None:
        state = torch.load(self.folder / "last.pt", weights_only=True)
        for name, item in self._stateful().items():
            item.load_state_dict(state[name])
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]

    def _batch(self) -> Tensor:
        """The windows of this step: all of them in an order of each epoch's own, the same for all schemes."""
        per_epoch = len(self.text.train) // BATCH
        epoch, place = divmod(self.step, per_epoch)
        order = torch.randperm(len(self.text.train), generator=torch.Generator().manual_seed(self._seed(epoch)))
        return self.text.train[order[place * BATCH : (place + 1) * BATCH]]

    def _seed(self, number: int) -> int:
        return self.part.seed * 1_000_003 + number

    def train_step(self) -> float:
        """Trains one step, and returns its loss."""
        windows = self._batch()
        with torch.autocast("cpu", torch.bfloat16):
            losses = masked_losses(
                self.model, self.text.tokenizer, windows, mask_of(windows, self._seed(500_000 + self.step))
            )
        loss = losses.mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        return loss.item()

    def run(self) -> dict[str, Any]:
        """Trains to the part's tokens, and returns what is recorded of it.

        Raises:
            UserError: the checkpoint is of a longer run.
        """
        steps, losses, started = math.ceil(self.part.tokens / (BATCH * LENGTH)), list[float](), time.process_time()
        if self.step > steps:
            raise UserError(
                f"{str(self.folder)!r} holds a checkpoint after {self.step:,} steps, and the model after {steps:,} is "
                "wanted. Take another folder for --work, in which it is trained again."
            )
        self.model.train()
        while self.step < steps and not self.has_diverged:
            losses.append(self.train_step())
            if self.step % EVALUATE_EVERY == 0 or self.step == steps or not math.isfinite(losses[-1]):
                self.seconds += time.process_time() - started
                self._evaluate(sum(losses) / len(losses))
                losses, started = [], time.process_time()
            if self.step % SAVE_EVERY == 0:
                self._save()
        self._save()
        model_folder = self.folder / f"model-{self.part.tokens // MILLION}M"
        self.model.save_pretrained(model_folder)
        self.text.tokenizer.save_pretrained(model_folder)
        return {
            **asdict(self.part),
            "tokens": self.step * BATCH * LENGTH,
            "diverged": self.has_diverged,
            "cpu_seconds": round(self.seconds, 1),
            "parameters": self.model.num_parameters(),
            "curve": self.curve,
        }

    @property
    def has_diverged(self) -> bool:
        """True where the last loss was no number."""
        return bool(self.curve) and not math.isfinite(self.curve[-1]["train"])

    def _evaluate(self, train_loss: float) -> None:
        held_out = {split: getattr(self.text, split)[:HELD_OUT_BLOCKS] for split in ("dev", "test")}
        losses = {split: held_out_loss(self.model, self.text.tokenizer, part) for split, part in held_out.items()}
        self.curve.append({"tokens": self.step * BATCH * LENGTH, "train": train_loss, **losses})
        print(f"{time.strftime('%H:%M')} {self.part.name} {self.curve[-1]}", flush=True)


def run(options: argparse.Namespace) -> None:
    """Trains all parts that aren't there; where another process holds what could be next, looks again in a minute."""
    output, work = Path(options.output), Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    text = Text(data_folder(options), work)
    text.record(output)
    while parts := next_parts(Results(output)):
        if not any(train(part, text, output, work) for part in parts):
            time.sleep(60)


def train(part: Part, text: Text, output: Path, work: Path) -> bool:
    """Trains a part, unless another process holds it, and writes it; returns whether this one did."""
    folder = work / part.name
    folder.mkdir(exist_ok=True)
    try:
        with FileLock(folder / "part.lock", 0):
            if not Results(output).has(part):  # another process may just have written it
                train_and_write(part, text, output, folder)
            return True
    except Timeout:
        return False


def train_and_write(part: Part, text: Text, output: Path, folder: Path) -> None:
    """Trains a part in its folder, and writes it."""
    machine = {"processor": processor(), "commit": commit(Path(__file__).parent), "versions": versions()}
    write_json(output / f"{part.name}.json", Training(part, text, folder).run() | machine)


def options_of_study(doc: str | None) -> argparse.ArgumentParser:
    """The options of the study's commands."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("HF_POSENC_DATA"), help="folder of the data sets")
    parser.add_argument("--work", default="runs/pretraining", help="folder for text, checkpoints and models")
    parser.add_argument("--output", default="model_cards/results/pretraining", help="folder of the parts")
    parser.add_argument("--ray", action="store_true", help="run on all cores of a Ray cluster")
    return parser


def main() -> None:
    """The command."""
    parser = options_of_study(__doc__)
    parser.add_argument("--status", action="store_true", help="say which parts are there, and which is next")
    options = parser.parse_args()
    if options.status:
        print(Results(Path(options.output)).status())
    elif options.ray:
        Cluster().run_everywhere()
    else:
        run(options)


if __name__ == "__main__":
    run_script(main)
