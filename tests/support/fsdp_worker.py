"""One of two processes of a sharded run: `torchrun --nproc_per_node 2 fsdp_worker.py FOLDER SCHEME`.

It writes losses and an ordinary checkpoint into FOLDER. Without torchrun it is the same run in one process, whole.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hf_posenc import PosEncConfig, PosEncForSequenceClassification, scale_position_learning_rates

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "hidden_dropout_prob": 0.0}


def batch(step: int, rank: int, world: int) -> dict[str, torch.Tensor]:
    """This process's share of the step's eight rows, padded."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(1, 50, (8, 12), generator=generator)
    for row in range(8):
        ids[row, 4 + row :] = 0
    labels = torch.randint(0, 2, (8,), generator=generator)
    rows = slice(rank, None, world)
    return {"input_ids": ids[rows], "attention_mask": (ids[rows] != 0).long(), "labels": labels[rows]}


def main(folder: Path, scheme: str) -> None:
    """Four steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sharded = "RANK" in os.environ
    if sharded:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if sharded else (0, 1)
    config = PosEncConfig.from_size("tiny", vocab_size=50, position_embedding_type=scheme, **SIZES)
    model = PosEncForSequenceClassification(config)
    if sharded:
        mesh = init_device_mesh("cpu", (world,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scale_position_learning_rates(optimizer, model)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = model(**batch(step, rank, world)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    total = torch.stack(losses)
    if sharded:
        dist.all_reduce(total)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        model.save_pretrained(folder / "checkpoint", state_dict=whole)
        (folder / "losses").write_text(" ".join(str(float(value)) for value in total / world))
    if sharded:
        dist.barrier()
        dist.destroy_process_group()
        os._exit(0)  # gloo's threads may still be ending, and abort a process that ends around them


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
