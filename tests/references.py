"""One naive float64 version of each scheme, written from the papers and sharing no code with the package.

`REFERENCES[name](scheme)` takes a scheme's weights and returns what it should compute: `embed`, `rotate` and `bias` as
plain loops, None where the scheme doesn't use the hook. A scheme without a reference fails the suite.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

f64 = torch.float64


@dataclass
class Reference:
    """What a scheme should compute, for one sequence, in float64."""

    embed: Callable[[Tensor, Tensor], Tensor] | None = None
    """(S, D), (S,) -> (S, D)."""
    rotate: Callable[[Tensor, Tensor], Tensor] | None = None
    """(S, d), (S,) -> (S, d), of one head."""
    bias: Callable[[Tensor], Tensor] | None = None
    """(S,) -> (H, S, S)."""


def sine(p: int, dim: int, base: float) -> list[float]:
    """Vaswani et al. 2017, section 3.5, entry by entry."""
    row = []
    for column in range(dim):
        angle = p / base ** (2 * (column // 2) / dim)
        row.append(math.sin(angle) if column % 2 == 0 else math.cos(angle))
    return row


def sine_table(positions: Tensor, dim: int, base: float) -> Tensor:
    return torch.tensor([sine(int(p), dim, base) for p in positions], dtype=f64)


def none(scheme) -> Reference:
    return Reference()


def sinusoidal(scheme, rms: float | None = None) -> Reference:
    scale = 1.0 if rms is None else rms * math.sqrt(2)

    def embed(x: Tensor, positions: Tensor) -> Tensor:
        return x + scale * sine_table(positions, x.shape[-1], 10000.0)

    return Reference(embed=embed)


def learned(scheme) -> Reference:
    table = scheme.embedding.weight

    def embed(x: Tensor, positions: Tensor) -> Tensor:
        return torch.stack([x[i] + table[int(p)].to(f64) for i, p in enumerate(positions)])

    return Reference(embed=embed)


def lspe(scheme, rms: float | None = None) -> Reference:
    w1, b1 = scheme.up.weight, scheme.up.bias
    w2, b2 = scheme.down.weight, scheme.down.bias

    def embed(x: Tensor, positions: Tensor) -> Tensor:
        pe = sine_table(positions, x.shape[-1], 10000.0)
        hidden = 1 / (1 + torch.exp(-(pe @ w1.to(f64).T + b1.to(f64))))
        return x + (rms or 1.0) * (hidden @ w2.to(f64).T + b2.to(f64))

    return Reference(embed=embed)


def rope(scheme, theta: float = 10000.0, interleaved: bool = False) -> Reference:
    def rotate(x: Tensor, positions: Tensor) -> Tensor:
        d = x.shape[-1]
        rows = []
        for i, p in enumerate(positions.tolist()):
            row: list[Tensor] = [x[i, 0]] * d
            for pair in range(d // 2):
                first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + d // 2)
                angle = p * theta ** (-2 * pair / d)
                a, b = x[i, first], x[i, second]
                row[first] = a * math.cos(angle) - b * math.sin(angle)
                row[second] = a * math.sin(angle) + b * math.cos(angle)
            rows.append(torch.stack(row))
        return torch.stack(rows)

    return Reference(rotate=rotate)


REFERENCES: dict[str, Callable[..., Reference]] = {
    "none": none,
    "sinusoidal": sinusoidal,
    "learned": learned,
    "lspe": lspe,
    "rope": rope,
}


def encode(model, input_ids: Tensor, positions: Tensor | None = None) -> Tensor:
    """The whole encoder in float64 for one sequence without padding: (S,) token numbers -> (S, D).

    Takes the weights of a `PosEncModel`; loops over heads; the scheme comes from `REFERENCES`.
    """
    config, weights = model.config, {name: value.to(f64) for name, value in model.named_parameters()}
    positions = torch.arange(len(input_ids)) if positions is None else positions
    arguments = {name: value for name, value in config.position_embedding_kwargs.items() if name == "rms"}
    reference = REFERENCES[config.position_embedding_type](model.position, **arguments)

    def norm(x: Tensor, name: str) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        deviation = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(deviation + config.layer_norm_eps) * weights[f"{name}.weight"] + weights[
            f"{name}.bias"
        ]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def attention(x: Tensor, name: str) -> Tensor:
        size = config.hidden_size // config.num_attention_heads
        bias = reference.bias(positions) if reference.bias else None
        heads = []
        for head in range(config.num_attention_heads):
            cut = slice(head * size, (head + 1) * size)
            q, k, v = (linear(x, f"{name}.{part}")[:, cut] for part in ("query", "key", "value"))
            if reference.rotate is not None:
                q, k = reference.rotate(q, positions), reference.rotate(k, positions)
            logits = q @ k.T / math.sqrt(size)
            if bias is not None:
                logits = logits + bias[head]
            exponentials = torch.exp(logits - logits.max(-1, keepdim=True).values)
            heads.append(exponentials / exponentials.sum(-1, keepdim=True) @ v)
        return linear(torch.cat(heads, -1), f"{name}.dense")

    def feed_forward(x: Tensor, name: str) -> Tensor:
        hidden = linear(x, f"{name}.intermediate")
        return linear(hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2))), f"{name}.output")

    x = torch.stack([weights["embeddings.word_embeddings.weight"][int(token)] for token in input_ids])
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    if reference.embed is not None:
        x = reference.embed(x, positions)
    x = norm(x, "embeddings.norm")
    for index in range(config.num_hidden_layers):
        layer = f"layers.{index}"
        if config.norm_position == "pre":
            x = x + attention(norm(x, f"{layer}.attention_norm"), f"{layer}.attention")
            x = x + feed_forward(norm(x, f"{layer}.output_norm"), layer)
        else:
            x = norm(x + attention(x, f"{layer}.attention"), f"{layer}.attention_norm")
            x = norm(x + feed_forward(x, layer), f"{layer}.output_norm")
    return norm(x, "norm") if config.norm_position == "pre" else x
