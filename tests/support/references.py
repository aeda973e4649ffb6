"""One naive float64 version of each scheme, written from the papers and sharing no code with the package.

`REFERENCES[name](scheme)` takes a scheme's weights and returns what it should compute: `embed`, `rotate` and `bias` as
plain loops, None where the scheme doesn't use the hook. A scheme without a reference fails the suite.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    layer_bias: Callable[[Tensor, Tensor, Tensor, int, int], Tensor] | None = None
    """q and k of one head (S, d), positions (S,), layer, head -> (S, S), already divided by sqrt(d)."""
    hidden_bias: Callable[[Tensor, Tensor, int, int], Tensor] | None = None
    """What q and k are projected from (S, D), positions (S,), layer, head -> (S, S)."""
    query_scale: float = 1.0


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
    alpha = 1.0 if scheme.alpha is None else scheme.alpha.weight[0, 0].to(f64)

    def embed(x: Tensor, positions: Tensor) -> Tensor:
        return x + alpha * scale * sine_table(positions, x.shape[-1], 10000.0)

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


def normal_quantile(share: float) -> float:
    """The point below which `share` of a standard normal distribution lies, by bisection."""
    low, high = -40.0, 40.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * (1 + math.erf(middle / math.sqrt(2))) < share else (low, middle)
    return low


def fourier(scheme, rms: float | None = None) -> Reference:
    shifts = scheme.shifts.weight[0].to(f64)
    count = len(shifts)

    def embed(x: Tensor, positions: Tensor) -> Tensor:
        rows = []
        for i, p in enumerate(positions.tolist()):
            angles = [
                p
                * (normal_quantile(0.5 + (m + 0.5) / (2 * count)) / scheme.gamma + shifts[m] / scheme.reference_length)
                for m in range(count)
            ]
            r = torch.stack([torch.cos(a) for a in angles] + [torch.sin(a) for a in angles]) / math.sqrt(2 * count)
            gelu = network(scheme.up, scheme.down, r, lambda u: u * 0.5 * (1 + torch.erf(u / math.sqrt(2))))
            rows.append(x[i] + (rms or 1.0) * gelu)
        return torch.stack(rows)

    return Reference(embed=embed)


def rope(scheme) -> Reference:
    def rotate(x: Tensor, positions: Tensor, layer: int = 0) -> Tensor:
        parameters = scheme.rope_parameters
        if scheme.local is not None and layer % scheme.every:
            parameters = scheme.local.rope_parameters
        assert parameters["rope_type"] == "default"  # the scaled ones are compared with transformers' Llama
        size = int(x.shape[-1] * parameters.get("partial_rotary_factor", 1.0))
        frequencies = [parameters["rope_theta"] ** (-2 * pair / size) for pair in range(size // 2)]
        rows = []
        for i, p in enumerate(positions.tolist()):
            row: list[Tensor] = list(x[i])
            for pair, frequency in enumerate(frequencies):
                n = len(frequencies)
                first, second = (2 * pair, 2 * pair + 1) if scheme.interleaved else (pair, pair + n)
                cos, sin = math.cos(p * frequency), math.sin(p * frequency)
                a, b = x[i, first], x[i, second]
                row[first] = a * cos - b * sin
                row[second] = a * sin + b * cos
            rows.append(torch.stack(row))
        return torch.stack(rows)

    return Reference(rotate=rotate)


def pairs(positions: Tensor, heads: int, entry: Callable[[int, int, int], Tensor | float]) -> Tensor:
    """(H, S, S) of entry(head, p_i, p_j)."""
    places = positions.tolist()
    return torch.stack(
        [
            torch.stack([torch.stack([torch.as_tensor(entry(h, i, j), dtype=f64) for j in places]) for i in places])
            for h in range(heads)
        ]
    )


def by_layer(scheme, heads: int, entry: Callable[[int, int, int, int], Tensor | float]) -> Reference:
    """A bias of all layers, or of each: entry(layer, head, p_i, p_j)."""
    if not scheme.per_layer:
        return Reference(bias=lambda positions: pairs(positions, heads, lambda h, i, j: entry(0, h, i, j)))

    def layer_bias(q: Tensor, k: Tensor, positions: Tensor, layer: int, head: int) -> Tensor:
        return pairs(positions, 1, lambda _, i, j: entry(layer, head, i, j))[0]

    return Reference(layer_bias=layer_bias)


def by_token(positions: Tensor, entry: Callable[[int, int, int, int], Tensor]) -> Tensor:
    """(S, S) of entry(i, j, p_i, p_j), for what depends on the tokens too."""
    places = positions.tolist()
    return torch.stack([torch.stack([entry(i, j, p, r) for j, r in enumerate(places)]) for i, p in enumerate(places)])


PUBLISHED_SLOPES = {
    4: [2**-2, 2**-4, 2**-6, 2**-8],
    8: [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8],
    12: [*(2.0**-n for n in range(1, 9)), *(2.0 ** -(n + 0.5) for n in range(4))],
}


def alibi(scheme) -> Reference:
    heads = len(scheme.slopes[0])
    left = PUBLISHED_SLOPES[heads]
    sides = [[left, left[::-1] if scheme.directional else left]]
    if scheme.log_slopes is not None:
        rows = [row.to(f64).exp() for row in scheme.log_slopes.weight]
        step = 2 if scheme.directional else 1
        sides = [[rows[start], rows[start + step - 1]] for start in range(0, len(rows), step)]

    def entry(layer: int, h: int, i: int, j: int) -> Tensor | float:
        left, right = sides[layer]
        return -left[h] * (i - j) if j <= i else -right[h] * (j - i)

    return by_layer(scheme, heads, entry)


def t5_bucket(distance: int, buckets: int, far: int) -> int:
    half = buckets // 2
    start = half if distance > 0 else 0
    distance = abs(distance)
    if distance < half // 2:
        return start + distance
    exact = half // 2
    bucket = exact + int(math.log(distance / exact) / math.log(far / exact) * (half - exact))
    return start + min(bucket, half - 1)


def by_table(scheme, row: Callable[[int], int]) -> Reference:
    """A bias that is a row of a table of all layers or of each, `row` of the distance."""

    def entry(layer: int, h: int, i: int, j: int) -> Tensor:
        return scheme.tables[layer].weight[row(j - i), h].to(f64)

    return by_layer(scheme, scheme.tables[0].weight.shape[1], entry)


def t5(scheme) -> Reference:
    return by_table(scheme, lambda distance: t5_bucket(distance, scheme.num_buckets, scheme.max_distance))


def toeplitz(scheme) -> Reference:
    far = scheme.max_distance
    return by_table(scheme, lambda distance: max(-far, min(distance, far)) + far)


def kerple(scheme) -> Reference:
    rows = scheme.shape.weight.to(f64)

    def entry(h: int, i: int, j: int) -> Tensor:
        far = abs(i - j)
        a, b = rows[2:] if scheme.directional and j > i else rows[:2]
        if scheme.kernel == "log":
            return -torch.exp(a[h]) * torch.log(1 + torch.exp(b[h]) * far)
        return -torch.exp(a[h]) * far ** (2 / (1 + torch.exp(-b[h]))) if far else torch.zeros((), dtype=f64)

    return Reference(bias=lambda positions: pairs(positions, rows.shape[1], entry))


def network(up, down, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    hidden = activation(x @ up.weight.to(f64).T + up.bias.to(f64))
    return hidden @ down.weight.to(f64).T + down.bias.to(f64)


def relu(x: Tensor) -> Tensor:
    return torch.maximum(x, torch.zeros_like(x))


def fire(scheme) -> Reference:
    c, threshold = torch.exp(scheme.scales.weight.to(f64)).flatten()

    def entry(h: int, i: int, j: int) -> Tensor:
        distance, place = j - i, torch.maximum(torch.tensor(float(max(i, j)), dtype=f64), threshold)
        ratio = torch.log(c * abs(distance) + 1) / torch.log(c * place + 1)
        sign = (distance > 0) - (distance < 0)
        return network(scheme.up, scheme.down, (sign * ratio).reshape(1), relu)[h]

    return Reference(bias=lambda positions: pairs(positions, scheme.down.out_features, entry))


def mlp_bias(scheme) -> Reference:
    def entry(h: int, i: int, j: int) -> Tensor:
        distance = j - i
        sign = (distance > 0) - (distance < 0)
        x = torch.tensor([sign * math.log2(1 + abs(distance)) / math.log2(1 + 128)], dtype=f64)
        return network(scheme.up, scheme.down, x, relu)[h]

    return Reference(bias=lambda positions: pairs(positions, scheme.down.out_features, entry))


def tupe(scheme) -> Reference:
    def bias(positions: Tensor) -> Tensor:
        vectors = []
        for p in positions.tolist():
            e = scheme.embedding.weight[p].to(f64)
            e = (e - e.mean()) / torch.sqrt(((e - e.mean()) ** 2).mean() + scheme.norm.eps)
            vectors.append(e * scheme.norm.weight.to(f64) + scheme.norm.bias.to(f64))
        stacked = torch.stack(vectors)
        q, k = (stacked @ w.weight.to(f64).T + w.bias.to(f64) for w in (scheme.query, scheme.key))
        size = q.shape[-1] // scheme.num_heads
        heads = []
        for h in range(scheme.num_heads):
            cut = slice(h * size, (h + 1) * size)
            rows = q[:, cut] @ k[:, cut].T / math.sqrt(2 * size)
            if scheme.first is not None:
                theta_row, theta_column = scheme.first.weight[:, h].to(f64)
                rows = torch.cat((theta_column.expand(len(rows), 1), rows[:, 1:]), dim=1)
                rows = torch.cat((theta_row.expand(1, len(rows)), rows[1:]), dim=0)
            heads.append(rows)
        return torch.stack(heads)

    return Reference(bias=bias, query_scale=1 / math.sqrt(2))


def relative_key(scheme, with_keys: bool = False) -> Reference:
    def layer_bias(q: Tensor, k: Tensor, positions: Tensor, layer: int, head: int) -> Tensor:
        table = scheme.tables[layer].weight.to(f64)
        middle = (len(table) - 1) // 2

        def entry(i: int, j: int, p: int, r: int) -> Tensor:
            vector = table[p - r + middle]
            return q[i] @ vector + (k[j] @ vector if with_keys else 0)

        return by_token(positions, entry) / math.sqrt(q.shape[-1])

    return Reference(layer_bias=layer_bias)


def relative_key_query(scheme) -> Reference:
    return relative_key(scheme, with_keys=True)


def deberta(scheme) -> Reference:
    limit, buckets = scheme.max_distance, scheme.position_buckets
    terms = (scheme.keys is not None) + (scheme.queries is not None)

    def bucket(distance: int) -> int:
        if buckets is None or abs(distance) <= buckets // 2:
            return distance
        grown = math.log(abs(distance) / (buckets // 2)) / math.log((limit - 1) / (buckets // 2))
        return int(math.copysign(math.ceil(grown * (buckets // 2 - 1)) + buckets // 2, distance))

    def layer_bias(q: Tensor, k: Tensor, positions: Tensor, layer: int, head: int) -> Tensor:
        size = q.shape[-1]
        cut = slice(head * size, (head + 1) * size)
        table = scheme.embedding.weight.to(f64)
        if scheme.norm is not None:
            off = table - table.mean(-1, keepdim=True)
            unit = off / (off.square().mean(-1, keepdim=True) + scheme.norm.eps).sqrt()
            table = unit * scheme.norm.weight.to(f64) + scheme.norm.bias.to(f64)
        span = buckets or limit

        def projected(linears, distance: int) -> Tensor:
            vector = table[max(-span, min(bucket(distance), span - 1)) + span]
            return (linears[layer].weight.to(f64) @ vector + linears[layer].bias.to(f64))[cut]

        def entry(i: int, j: int, p: int, r: int) -> Tensor:
            total = torch.zeros((), dtype=f64)
            if scheme.keys is not None:
                total = total + q[i] @ projected(scheme.keys, p - r)
            if scheme.queries is not None:
                total = total + k[j] @ projected(scheme.queries, p - r)
            return total

        return by_token(positions, entry) / math.sqrt((1 + terms) * size)

    return Reference(layer_bias=layer_bias, query_scale=1 / math.sqrt(1 + terms))


def cable(scheme) -> Reference:
    def hidden_bias(x: Tensor, positions: Tensor, layer: int, head: int) -> Tensor:
        linear = scheme.shares[layer]
        shares = torch.log(1 + torch.exp(x @ linear.weight.to(f64).T + linear.bias.to(f64)))
        left, right = shares[:, head], shares[:, head + scheme.num_heads if scheme.directional else head]
        places = positions.tolist()

        def between(side: Tensor, low: int, high: int) -> Tensor:
            return sum((side[t] for t, p in enumerate(places) if low < p <= high), torch.zeros((), dtype=f64))

        return by_token(positions, lambda i, j, p, r: -between(left, r, p) if r <= p else -between(right, p, r))

    return Reference(hidden_bias=hidden_bias)


def pope(scheme) -> Reference:
    """The logits less q.k, as a bias: the sum over entries of the product of lengths and the cosine."""

    def layer_bias(q: Tensor, k: Tensor, positions: Tensor, layer: int, head: int) -> Tensor:
        phase = scheme.phases[layer].weight[head].to(f64)
        d = q.shape[-1]
        speed = torch.tensor([scheme.theta ** (-c / d) for c in range(d)], dtype=f64)
        far_q, far_k = (torch.log(1 + torch.exp(x)) for x in (q, k))
        logits = by_token(
            positions, lambda i, j, p, r: (far_q[i] * far_k[j] * torch.cos((r - p) * speed + phase)).sum()
        )
        return (logits - q @ k.T) / math.sqrt(d)

    return Reference(layer_bias=layer_bias)


def dual_triangle(scheme) -> Reference:
    def entry(h: int, i: int, j: int) -> float:
        sees = j >= i if h >= scheme.num_heads // 2 else j <= i
        return 0.0 if sees else -math.inf

    return Reference(bias=lambda positions: pairs(positions, scheme.num_heads, entry))


def window(scheme) -> Reference:
    def layer_bias(q: Tensor, k: Tensor, positions: Tensor, layer: int, head: int) -> Tensor:
        farthest = scheme.sliding_window if layer % scheme.every else math.inf
        return pairs(positions, 1, lambda _, i, j: -math.inf if abs(j - i) > farthest else 0.0)[0]

    return Reference(layer_bias=layer_bias)


REFERENCES: dict[str, Callable[..., Reference]] = {
    "none": none,
    "sinusoidal": sinusoidal,
    "learned": learned,
    "lspe": lspe,
    "fourier": fourier,
    "rope": rope,
    "alibi": alibi,
    "t5": t5,
    "toeplitz": toeplitz,
    "kerple": kerple,
    "fire": fire,
    "mlp_bias": mlp_bias,
    "tupe": tupe,
    "relative_key": relative_key,
    "relative_key_query": relative_key_query,
    "deberta": deberta,
    "cable": cable,
    "pope": pope,
    "window": window,
    "dual_triangle": dual_triangle,
}


def reference_of(model) -> Reference:
    """The reference of a model's scheme, or of all that it combines: chained, added, multiplied."""
    names = model.config.position_embedding_type.split("+")
    kwargs = model.config.position_embedding_kwargs
    parts = []
    for name in names:
        own = kwargs if len(names) == 1 else kwargs[name]
        arguments = {key: value for key, value in own.items() if key == "rms"}
        parts.append(REFERENCES[name](getattr(model.position, name) if len(names) > 1 else model.position, **arguments))

    def chain(hook: str):
        def apply(x: Tensor, *place: Any) -> Tensor:
            for part in parts:
                x = getattr(part, hook)(x, *place) if getattr(part, hook) else x
            return x

        return apply if any(getattr(part, hook) for part in parts) else None

    def total(hook: str):
        used = [getattr(part, hook) for part in parts if getattr(part, hook)]
        return (lambda *arguments: sum(function(*arguments) for function in used)) if used else None

    def untied(positions: Tensor) -> Tensor:
        """TUPE-R: theta takes the place of all positional terms in the first token's row and column."""
        bias, scheme = total("bias")(positions), getattr(model.position, "tupe", None)
        if scheme is not None and scheme.first is not None:
            for head, (theta_row, theta_column) in enumerate(scheme.first.weight.to(f64).T):
                bias[head, :, 0] = theta_column
                bias[head, 0, :] = theta_row
        return bias

    return Reference(
        embed=chain("embed"),
        rotate=chain("rotate"),
        bias=untied if total("bias") else None,
        layer_bias=total("layer_bias"),
        hidden_bias=total("hidden_bias"),
        query_scale=math.prod(part.query_scale for part in parts),
    )


def encode(model, input_ids: Tensor, positions: Tensor | None = None) -> Tensor:
    """The whole encoder in float64 for one sequence without padding: (S,) token ids -> (S, D).

    Takes the weights of a `PosEncModel`; loops over heads; the scheme comes from `REFERENCES`.
    """
    config, weights = model.config, {name: value.to(f64) for name, value in model.named_parameters()}
    positions = torch.arange(len(input_ids)) if positions is None else positions
    reference = reference_of(model)

    def norm(x: Tensor, name: str) -> Tensor:
        if config.norm_type == "rms_norm":
            return x / torch.sqrt((x**2).mean(-1, keepdim=True) + config.layer_norm_eps) * weights[f"{name}.weight"]
        mean = x.mean(-1, keepdim=True)
        deviation = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(deviation + config.layer_norm_eps) * weights[f"{name}.weight"] + weights[
            f"{name}.bias"
        ]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def attention(x: Tensor, name: str) -> Tensor:
        size = config.hidden_size // config.num_attention_heads
        bias = reference.bias(positions) if reference.bias else None
        heads = []
        for head in range(config.num_attention_heads):
            cut = slice(head * size, (head + 1) * size)
            q, k, v = (linear(x, f"{name}.{part}")[:, cut] for part in ("query", "key", "value"))
            layer = int(name.split(".")[1])
            extra = reference.layer_bias(q, k, positions, layer, head) if reference.layer_bias else 0.0
            extra = extra + (reference.hidden_bias(x, positions, layer, head) if reference.hidden_bias else 0.0)
            if reference.rotate is not None:
                q, k = reference.rotate(q, positions, layer), reference.rotate(k, positions, layer)
            logits = q @ k.T / math.sqrt(size) * reference.query_scale + extra
            if bias is not None:
                logits = logits + bias[head]
            exponentials = torch.exp(logits - logits.max(-1, keepdim=True).values)
            heads.append(exponentials / exponentials.sum(-1, keepdim=True) @ v)
        return linear(torch.cat(heads, -1), f"{name}.dense")

    def feed_forward(x: Tensor, name: str) -> Tensor:
        hidden = linear(x, f"{name}.intermediate")
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        return linear(hidden * linear(x, f"{name}.up") if config.mlp_gated else hidden, f"{name}.output")

    x = torch.stack([weights["embeddings.word_embeddings.weight"][int(token)] for token in input_ids])
    if config.token_dropout is not None:
        masked = [int(token) == config.token_dropout for token in input_ids]
        share = sum(masked) / len(masked)
        x = torch.stack([row * (0.0 if hidden else 0.88 / (1 - share)) for row, hidden in zip(x, masked, strict=True)])
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    if reference.embed is not None:
        x = reference.embed(x, positions)
    x = x if config.norm_position == "pre_only" else norm(x, "embeddings.norm")
    for index in range(config.num_hidden_layers):
        layer = f"layers.{index}"
        if config.norm_position != "post":
            is_normed = index > 0 or config.norm_position != "pre_but_first"
            x = x + attention(norm(x, f"{layer}.attention_norm") if is_normed else x, f"{layer}.attention")
            x = x + feed_forward(norm(x, f"{layer}.output_norm"), layer)
        else:
            x = norm(x + attention(x, f"{layer}.attention"), f"{layer}.attention_norm")
            x = norm(x + feed_forward(x, layer), f"{layer}.output_norm")
    return x if config.norm_position == "post" else norm(x, "norm")


def varlen_attention(q, k, v, cuts, other_cuts, longest, other_longest, scale, window_size=(-1, -1)) -> Tensor:
    """PyTorch's varlen attention, which runs on a GPU alone: each sequence within a window, (T, H, d) -> (T, H, d)."""
    lengths = cuts.diff().tolist()
    assert torch.equal(cuts, other_cuts)
    assert max(lengths) == longest == other_longest
    left, right = (reach if reach >= 0 else longest for reach in window_size)
    outs = []
    for a, b, c in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        distance = torch.arange(len(a)) - torch.arange(len(a))[:, None]
        logits = torch.einsum("ihd,jhd->hij", a, b) * scale
        logits = logits.masked_fill((distance < -left) | (distance > right), -math.inf)
        outs.append(torch.einsum("hij,jhd->ihd", logits.softmax(-1), c))
    return torch.cat(outs)


def flash_attention(q, k, v, dropout_p, softmax_scale, alibi_slopes, deterministic=False) -> Tensor:
    """flash_attn 2.4's, as its documentation has it: (S, H, d) -> (S, H, d), queries aligned to the last keys."""
    assert alibi_slopes.dtype == torch.float32
    assert alibi_slopes.shape == q.shape[1:2]
    assert alibi_slopes.stride() == (1,)
    assert not alibi_slopes.requires_grad  # which the kernel would leave without a gradient
    assert not dropout_p
    i, j = torch.arange(len(q))[:, None], torch.arange(len(k))
    logits = softmax_scale * torch.einsum("ihd,jhd->hij", q, k)
    logits = logits - alibi_slopes[:, None, None] * (i + len(k) - len(q) - j).abs()
    return torch.einsum("hij,jhd->ihd", logits.softmax(-1).to(v.dtype), v)


def jina_bert(state: dict[str, Tensor], config: dict, ids: Tensor) -> Tensor:
    """Hidden states (S, D) of a JinaBERT v2 for one text (S,), in float64, by its description.

    Günther et al. 2023, arXiv 2310.19923: BERT with symmetric ALiBi, post-norm, and a gated feed-forward network whose
    first half is activated.
    """
    weights = {name: value.to(f64) for name, value in state.items()}
    heads, size = config["num_attention_heads"], len(ids)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros((), dtype=f64))

    def norm(x: Tensor, name: str) -> Tensor:
        off = x - x.mean(-1, keepdim=True)
        unit = off / (off.square().mean(-1, keepdim=True) + config["layer_norm_eps"]).sqrt()
        return unit * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    slopes = [2.0 ** (-8 * (head + 1) / heads) for head in range(heads)]  # of a power of two
    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    far = (torch.arange(size)[:, None] - torch.arange(size)).abs()
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}."
        q, k, v = (linear(x, f"{layer}attention.self.{name}").chunk(heads, -1) for name in ("query", "key", "value"))
        scale = q[0].shape[-1] ** -0.5
        shares = [torch.softmax(q[h] @ k[h].T * scale - slopes[h] * far, -1) for h in range(heads)]
        attended = torch.cat([share @ v[h] for h, share in enumerate(shares)], -1)
        x = norm(x + linear(attended, f"{layer}attention.output.dense"), f"{layer}attention.output.LayerNorm")
        first, second = linear(x, f"{layer}mlp.gated_layers").chunk(2, -1)
        x = norm(x + linear(torch.nn.functional.gelu(first) * second, f"{layer}mlp.wo"), f"{layer}mlp.layernorm")
    return x


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def scalings(pairs: int, trained: int) -> dict[str, dict]:
    """Parameters of each type that change something at lengths on both sides of the trained one."""
    short, long = [1.0 + 0.1 * i for i in range(pairs)], [2.0 + 0.5 * i for i in range(pairs)]
    base = {"original_max_position_embeddings": trained}
    yarn = {"rope_type": "yarn", "factor": 4.0, **base}
    return {
        "default": {"rope_type": "default", "rope_theta": 500.0},
        "linear": {"rope_type": "linear", "factor": 4.0},
        "dynamic": {"rope_type": "dynamic", "factor": 2.0, **base},
        "yarn": {"rope_type": "yarn", "factor": 8.0, **base},
        "yarn_mscale": yarn
        | {"beta_fast": 8.0, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False},
        "yarn_attention": yarn | {"attention_factor": 1.5},
        "longrope": {"rope_type": "longrope", "factor": 8.0, "short_factor": short, "long_factor": long, **base},
        "llama3": {**LLAMA3, **base},
        "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    }
