"""Refitting: what can be mended in closed form is, what is right stays, and padding doesn't count."""

import copy

import pytest
import torch

from hf_posenc import PosEncConfig, PosEncModel
from hf_posenc.conversion.refit import refit


def encoder(norm, scheme="learned", **more):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = PosEncConfig(
        **sizes, intermediate_size=48, norm_position=norm, position_embedding_type=scheme, initializer_range=0.3, **more
    )
    return PosEncModel(config).eval()


def batches(seed, count=8):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        lengths = torch.randint(3, 30, (16, 1), generator=generator)
        mask = (torch.arange(30) < lengths).long()
        yield {"input_ids": torch.randint(1, 50, (16, 30), generator=generator) * mask, "attention_mask": mask}


def difference(model, original):
    """Root mean square at the real tokens of unseen batches."""
    found = []
    with torch.no_grad():
        for batch in batches(1, 2):
            mine, other = (one(**batch).last_hidden_state for one in (model, original))
            found.append((mine - other)[batch["attention_mask"].bool()])
    return torch.cat(found).square().mean().sqrt().item()


@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_what_ends_attention_and_the_network_is_found_again(norm, unpad):
    original = encoder(norm, unpad_inputs=unpad)
    model = copy.deepcopy(original)
    refit(model, original, list(batches(0)), ridge=0.0)
    assert difference(model, original) < 1e-4  # what is right stays
    with torch.no_grad():
        for layer in model.layers:
            for linear in (layer.attention.dense, layer.output):
                linear.weight.add_(torch.randn_like(linear.weight) * 0.2)
                linear.bias.add_(torch.randn_like(linear.bias) * 0.2)
    assert difference(model, original) > 0.1
    refit(model, original, list(batches(0)), ridge=1e-8)
    assert difference(model, original) < 1e-3


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("scheme", ["sinusoidal", "alibi", "rope"])
def test_a_model_without_its_positions_comes_nearer_and_its_embeddings_stay(scheme, norm):
    original = encoder(norm)
    model = encoder(norm, scheme)
    state = {name: value for name, value in original.state_dict().items() if not name.startswith("position.")}
    model.load_state_dict(state, strict=False)
    before = difference(model, original)
    refit(model, original, list(batches(0)))
    assert difference(model, original) < 0.95 * before
    for name, value in model.state_dict().items():
        if name.startswith(("embeddings.", "position.")) or "norm" in name:
            assert name not in state or torch.equal(value, state[name]), name


def test_padding_has_no_part_in_it():
    original = encoder("post")
    found = []
    for extra in (0, 7):
        model = encoder("post", "alibi", unpad_inputs=False)
        given = [
            {name: torch.nn.functional.pad(value, (0, extra)) for name, value in batch.items()} for batch in batches(0)
        ]
        refit(model, original, given)
        found.append(model)
    for (name, one), other in zip(found[0].named_parameters(), found[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3, msg=name)
