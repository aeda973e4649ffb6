"""Dropout drops what it says, scales what it keeps, and repeats with the seed."""

import logging
import sys

import pytest
import torch
from torch import nn
from transformers.integrations.neftune import neftune_post_forward_hook

from hf_posenc import kernels
from tests.support.common import SCHEMES, encoder, padded, tokens

Dropout, STEPS = kernels.Dropout, kernels.dropout.STEPS


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_so_many_entries_are_dropped_and_the_others_scaled(p, dtype):
    torch.manual_seed(0)
    x = torch.full((1000, 201), 3.0, dtype=dtype)  # an odd number of entries: the last word is used in part
    y = Dropout(p).train()(x)
    kept = y != 0
    assert y.dtype == dtype
    assert y.shape == x.shape
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=4 * (p * (1 - p) / x.numel()) ** 0.5)
    wanted = 3.0 * STEPS / (STEPS - round(p * STEPS))
    torch.testing.assert_close(y[kept].double(), torch.full_like(y[kept], wanted).double(), rtol=1e-2, atol=0)
    rows, columns = kept.double().mean(0), kept.double().mean(1)
    assert rows.std() < 1.3 * (p * (1 - p) / 1000) ** 0.5
    assert columns.std() < 1.3 * (p * (1 - p) / 201) ** 0.5


def test_neighbours_are_dropped_independently():
    torch.manual_seed(1)
    kept = (Dropout(0.5).train()(torch.ones(400_000)) != 0).double() - 0.5
    for distance in (1, 2, 3, 4, 8):  # four entries share a word
        assert abs((kept[:-distance] * kept[distance:]).mean().item()) < 4 * 0.25 / 400_000**0.5


def test_the_gradient_is_that_of_the_same_mask():
    torch.manual_seed(0)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def drop(value):
        torch.manual_seed(7)
        return Dropout(0.3).train()(value)

    assert torch.autograd.gradcheck(drop, (x,))
    assert torch.autograd.gradgradcheck(drop, (x,))
    assert torch.equal(drop(x), drop(x))


def test_evaluation_is_torchs_and_both_ends_are_exact():
    dropped = (Dropout(1 / STEPS).train()(torch.ones(64 * STEPS)) == 0).sum().item()
    assert dropped == pytest.approx(64, abs=40)  # five standard deviations
    x = torch.randn(4, 4)
    assert Dropout(0.5).eval()(x) is x
    assert torch.equal(Dropout(0.0).train()(x), x)
    assert torch.equal(Dropout(1.0).train()(x), torch.zeros(4, 4))
    assert Dropout(0.1).train()(x[:0]).shape == (0, 4)
    assert isinstance(Dropout(0.1), nn.Dropout)  # tools that set p or count dropouts find it


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("scheme", ["rope", "t5"])
def test_attention_dropout_is_a_module_that_tools_switch(scheme, backend):
    """As sentence-transformers' gradient-cached losses do, by `p`, and Monte Carlo dropout, by `train`."""
    ids, mask = padded([tokens(n, seed=n) for n in (9, 4, 6)])
    model = encoder(scheme, attention_probs_dropout_prob=0.3, attn_implementation=backend).train()
    dropouts = [layer.attention.dropout for layer in model.layers]
    assert [type(module) for module in dropouts] == [nn.Dropout] * 2
    assert [module.p for module in dropouts] == [0.3] * 2
    assert not [key for key in model.state_dict() if "dropout" in key]

    def is_random():
        return not torch.equal(*(model(ids, attention_mask=mask).last_hidden_state for _ in range(2)))

    assert is_random()
    for module in dropouts:
        module.eval()
    assert not is_random()
    model.eval()
    for module in dropouts:
        module.train()
    assert is_random()
    for module in dropouts:
        module.p = 0.0
    assert not is_random()
    model.config.attention_probs_dropout_prob = 0.9
    assert not is_random(), "the config says how it starts"


@pytest.mark.parametrize("unpad", [True, False])
def test_hooks_on_the_word_embeddings_see_the_batch(unpad):
    """NEFTune's noise is at most alpha / sqrt(S E), attributions have an axis of texts."""
    model = encoder("rope", unpad_inputs=unpad).train()
    words, seen = model.get_input_embeddings(), []
    words.neftune_noise_alpha = 5.0
    for hook in (lambda _, __, out: seen.append(out.detach()), neftune_post_forward_hook):
        words.register_forward_hook(hook)
    words.register_forward_hook(lambda _, __, out: seen.append(out.detach()))
    ids, mask = padded([tokens(n) for n in (5, 12, 3, 40)])
    model(ids, attention_mask=mask)
    assert seen[0].shape[:2] == ids.shape
    largest = 5 / (ids.shape[1] * seen[0].shape[2]) ** 0.5
    assert 0.95 * largest < (seen[1] - seen[0]).abs().max() <= largest


def test_gradients_of_each_sample_need_the_batch_axis(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    model = encoder("rope").train()
    ids, mask = padded([tokens(5), tokens(3)])
    for weight in model.parameters():
        weight.grad_sample = None  # as opacus marks them
    with pytest.raises(ValueError, match="opacus.*unpad_inputs=False"):
        model(ids, attention_mask=mask)
    model.eval()(ids, attention_mask=mask)
    model.config.unpad_inputs = False
    model.train()(ids, attention_mask=mask)


def test_training_repeats_with_the_seed_checkpointed_or_not():
    ids, mask = padded([tokens(n, seed=n) for n in (9, 4, 6)])
    gradients = []
    for checkpointing in (False, False, True, True):
        model = encoder("rope", hidden_dropout_prob=0.3).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(3)
        model(ids, attention_mask=mask).last_hidden_state.sum().backward()
        gradients.append(model.embeddings.word_embeddings.weight.grad)
    assert torch.equal(*gradients[:2])
    assert torch.equal(*gradients[2:])
    torch.testing.assert_close(gradients[0], gradients[2])


@pytest.mark.parametrize("scheme", [*SCHEMES, "sinusoidal+rope+relative_key"])
def test_checkpointing_has_the_same_gradients_and_is_never_reentrant(scheme, caplog):
    """PyTorch's reentrant way would go back through the graph of a bias that layers share once for each layer."""
    logging.Logger.warning_once.cache_clear()
    gradients = []
    for kwargs in (None, {"use_reentrant": True}, {"preserve_rng_state": True}):
        model = encoder(scheme).train()
        if kwargs:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
        torch.manual_seed(3)
        model(tokens(2, 7)).last_hidden_state.sum().backward()
        gradients.append(model.embeddings.word_embeddings.weight.grad)
        model.gradient_checkpointing_disable()
    assert ["isn't reentrant" in text for text in caplog.messages] == [True]
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])
