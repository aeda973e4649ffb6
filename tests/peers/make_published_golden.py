"""Writes what three published programs compute, for schemes that no package on the index has.

    python tests/peers/make_published_golden.py --kerple KERPLE --tupe TUPE --fire arithmetic

The folders are clones of the repositories of

- KERPLE: chijames/KERPLE at 73f1ee2d, the authors', `megatron/mpu/layers.py`,
- TUPE: guolinke/TUPE at 000ded05, the authors', `fairseq/modules/transformer_sentence_encoder.py`,
- FIRE: mcleish7/arithmetic at 55af9d5e, the code of FIRE's appendix, `cramming/architectures/embeddings.py`.

Only the classes needed are run, as they are, without what the files import: none of their code is here. It writes
published.safetensors next to itself: weights, biases and gradients; test_published.py compares ours.
"""

import argparse
import ast
import math
import os
import types
import typing
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

LENGTH, HEADS = 24, 3


def run_class(file: Path, name: str, **names: Any) -> Any:
    """One class of a source file, run among torch's names and the given ones."""
    tree = ast.parse(file.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if len(classes) != 1:
        raise SystemExit(f"{file} has no class {name}: is it the commit that is named at the top of this script?")
    space = {"torch": torch, "nn": nn, "F": nn.functional, "Parameter": nn.Parameter, "math": math, **vars(typing)}
    space |= {"__name__": name, **names}
    exec(compile(ast.Module(classes, []), str(file), "exec"), space)
    return space[name]


def collect(name: str, module: nn.Module, bias: torch.Tensor) -> dict[str, torch.Tensor]:
    """The module's weights, its bias (H, S, S), a target below the diagonal, and gradients of their product's sum."""
    target = torch.randn(bias.shape).tril()
    (bias * target).sum().backward()
    tensors = {f"{name}.bias": bias, f"{name}.target": target}
    for key, weight in module.named_parameters():
        tensors[f"{name}.weight.{key}"] = weight
        if weight.grad is not None:
            tensors[f"{name}.gradient.{key}"] = weight.grad
    return {key: tensor.detach().clone().contiguous() for key, tensor in tensors.items()}


def kerple(clone: Path) -> dict[str, torch.Tensor]:
    """Both kernels, at distances to the left: it is causal. Nothing is multiplied (`none`), as in the paper."""
    torch_on_cpu = types.SimpleNamespace(**{**vars(torch), "cuda": types.SimpleNamespace(current_device=lambda: "cpu")})
    names = {"get_model_parallel_world_size": lambda: 1, "get_model_parallel_rank": lambda: 0, "torch": torch_on_cpu}
    tensors: dict[str, torch.Tensor] = {}
    for kernel, name in (("log", "ParallelKerpleLog"), ("power", "ParallelKerplePower")):
        cls = run_class(clone / "megatron/mpu/layers.py", name, **names)
        settings = {"num_attention_heads": HEADS, "pos_emb": "power_ap_none", "params_dtype": torch.float32}
        module = cls(types.SimpleNamespace(**settings))
        tensors |= collect(f"kerple_{kernel}", module, module(torch.zeros(1, HEADS, LENGTH, LENGTH))[0])
    return tensors


def fire(clone: Path) -> dict[str, torch.Tensor]:
    """With a threshold that some positions are below and some above."""
    cls = run_class(clone / "cramming/architectures/embeddings.py", "FIRE")
    module = cls(num_heads=HEADS, mlp_width=7, init_L=10.0).eval()
    return collect("fire", module, module(LENGTH, "cpu")[0])


def tupe(clone: Path) -> dict[str, torch.Tensor]:
    """TUPE-A's positional logits, as each layer gets them.

    Today's torch refuses a gradient through views that it changes in place: the one of its table is by differences.
    """
    seen: list[torch.Tensor] = []

    class Layer(nn.Module):
        def __init__(self, **_: Any) -> None:
            super().__init__()

        def forward(self, x: torch.Tensor, self_attn_padding_mask: Any, self_attn_bias: torch.Tensor) -> torch.Tensor:
            seen.append(self_attn_bias)
            return x

    cls = run_class(
        clone / "fairseq/modules/transformer_sentence_encoder.py",
        "TransformerSentenceEncoder",
        LayerNorm=lambda size, export: nn.LayerNorm(size),
        TransformerSentenceEncoderLayer=Layer,
    )
    module = cls(0, 3, num_encoder_layers=1, embedding_dim=12, num_attention_heads=HEADS, max_seq_len=LENGTH).eval()
    with torch.no_grad():
        for weight in (module.pos_ln.weight, module.pos_ln.bias):
            weight += 0.3 * torch.randn(12)
    target = torch.randn(HEADS, LENGTH, LENGTH)
    tensors = {f"tupe.weight.{k}": v.detach().clone() for k, v in module.named_parameters() if "embed" not in k}
    with torch.no_grad():
        module(torch.ones(1, LENGTH, dtype=torch.int64))
        tensors |= {"tupe.bias": seen[0].clone(), "tupe.target": target}
        table = module.double().pos.weight.view(-1)
        gradient = torch.zeros_like(table)
        for place in range(table.numel()):
            for step, sign in ((1e-5, 1), (-2e-5, -1)):
                table[place] += step
                module(torch.ones(1, LENGTH, dtype=torch.int64))
                gradient[place] += sign * (seen[-1] * target).sum() / 2e-5
            table[place] += 1e-5
    return tensors | {"tupe.gradient.pos.weight": gradient.view(-1, 12).float()}


def main() -> None:
    """Writes the file, whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tensors: dict[str, torch.Tensor] = {}
    for run in (kerple, fire, tupe):
        parser.add_argument(f"--{run.__name__}", type=Path, required=True, help="folder of the clone")
    arguments = parser.parse_args()
    for run in (kerple, fire, tupe):
        torch.manual_seed(0)
        tensors |= run(getattr(arguments, run.__name__))
    path = Path(__file__).with_name("published.safetensors")
    half_written = path.with_suffix(".tmp")
    save_file(tensors, half_written, {"by": f"torch {torch.__version__}"})
    os.replace(half_written, path)
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
