"""Parity with the published code of KERPLE, FIRE and TUPE: golden numbers, made by make_published_golden.py.

For `lspe` and `fourier` there is none to compare with: their authors published formulas, and other networks start and
scale differently. They stand on tests/support/references.py alone.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hf_posenc import FirePosition, KerplePosition, PositionScheme, Tokens, TupePosition

GOLDEN = load_file(Path(__file__).with_name("published.safetensors"))


def part(scheme: str, what: str) -> dict[str, Tensor]:
    prefix = f"{scheme}.{what}."
    return {key.removeprefix(prefix): value for key, value in GOLDEN.items() if key.startswith(prefix)}


def bias_and_gradients(name: str, scheme: PositionScheme) -> Tensor:
    """Our bias of as many positions; the gradients are those of the golden target."""
    target = GOLDEN[f"{name}.target"]
    positions = torch.arange(target.shape[-1])[None]
    bias = scheme.bias(Tokens.from_positions(positions))[0]
    (bias * target).sum().backward()
    return bias


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple_equals_its_authors_code_to_the_left(kernel):
    """It is causal, and keeps its parameters in range by clamping them, ours by exponentials."""
    weights, gradients = part(f"kerple_{kernel}", "weight"), part(f"kerple_{kernel}", "gradient")
    mine = KerplePosition(num_heads=3, kernel=kernel, directional=False)
    p, a = (weights[f"bias_{name}"].flatten() for name in "pa")
    dp, da = (gradients[f"bias_{name}"].flatten() for name in "pa")
    with torch.no_grad():  # -p log(1 + a d) or -a d^p, where ours are -r1 log(1 + r2 d) and -r1 d^r2
        mine.shape.weight.copy_(torch.stack([p.log(), a.log()] if kernel == "log" else [a.log(), (p / 2).logit()]))
    bias = bias_and_gradients(f"kerple_{kernel}", mine)
    close(bias.tril(), GOLDEN[f"kerple_{kernel}.bias"].tril())
    close(bias, bias.transpose(1, 2))
    wanted = [dp * p, da * a] if kernel == "log" else [da * a, dp * p * (1 - p / 2)]
    close(mine.shape.weight.grad, torch.stack(wanted), 1e-4)


def test_fire_equals_published_code_to_the_left():
    """It is causal, its distance has no sign and its denominator is 1e-6 larger."""
    weights, gradients = part("fire", "weight"), part("fire", "gradient")
    mine = FirePosition(num_heads=3, intermediate_size=7)
    threshold = weights["init_L"] * weights["L_multiplier"]
    with torch.no_grad():
        mine.scales.weight.copy_(torch.stack([weights["c"], threshold]).log().unsqueeze(-1))
        mine.up.weight.copy_(-weights["mlp.0.weight"])  # keys to the left are at negative distances here
        mine.up.bias.copy_(weights["mlp.0.bias"])
        mine.down.weight.copy_(weights["mlp.2.weight"])
        mine.down.bias.copy_(weights["mlp.2.bias"])
    bias = bias_and_gradients("fire", mine)
    close(bias.tril(), GOLDEN["fire.bias"].tril())
    # Sums of hundreds of entries, each off by the larger denominator.
    close(mine.up.weight.grad, -gradients["mlp.0.weight"], 1e-4)
    close(mine.up.bias.grad, gradients["mlp.0.bias"], 1e-4)
    close(mine.down.weight.grad, gradients["mlp.2.weight"], 1e-4)
    close(mine.down.bias.grad, gradients["mlp.2.bias"], 1e-4)
    by_logarithm = torch.stack([gradients["c"] * weights["c"], gradients["L_multiplier"] * weights["L_multiplier"]])
    close(mine.scales.weight.grad.flatten(), by_logarithm, 1e-4)


def test_tupe_equals_its_authors_code():
    """Its table has one row more, from which it computes the two numbers for [CLS] that are weights here."""
    weights, gradients = part("tupe", "weight"), part("tupe", "gradient")
    expected = GOLDEN["tupe.bias"]
    mine = TupePosition(hidden_size=12, num_heads=3, max_positions=24)
    with torch.no_grad():
        mine.embedding.weight.copy_(weights["pos.weight"][1:])
        mine.norm.weight.copy_(weights["pos_ln.weight"])
        mine.norm.bias.copy_(weights["pos_ln.bias"])
        for linear, half in zip((mine.query, mine.key), range(2), strict=True):
            linear.weight.copy_(weights["pos_proj.weight"].chunk(2)[half])
            linear.bias.copy_(weights["pos_proj.bias"].chunk(2)[half])
        mine.first.weight.copy_(torch.stack([expected[:, 0, 0], expected[:, 1, 0]]))
    close(bias_and_gradients("tupe", mine), expected)
    assert mine.query_scale == pytest.approx(2**-0.5)
    # Row 0 here only meets [CLS], which is untied; there it also makes one of the two numbers.
    close(mine.embedding.weight.grad[1:], gradients["pos.weight"][2:])
    assert (mine.embedding.weight.grad[0] == 0).all()
    target = GOLDEN["tupe.target"]
    close(mine.first.weight.grad, torch.stack([target[:, 0].sum(-1), target[:, 1:, 0].sum(-1)]))
