"""torch.compile: the same numbers, and few recompilations over batches of varying sizes."""

import shutil

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tests.support.common import encoder, padded, tokens

WARM_UP = 2
"""Batches: the first compiles for its own size, the second for any."""


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def batches(count):
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        lengths = torch.randint(2, 14, (3 if number == count - 1 else 4,), generator=generator)  # the last one is short
        yield padded([tokens(int(n), seed=int(n)) for n in lengths])


def compile_layers(model):
    """Only the layers, so that padding is taken out before, in Python."""
    for layer in model.layers:
        layer.compile(backend="eager")
    return model


def compile_whole(model):
    return torch.compile(model, backend="eager")


def assert_trains_alike(scheme, how, batches):
    """A compiled model and a plain one: hidden states and gradients. The graphs that there are after each batch."""
    plain, compiled = (encoder(scheme, num_hidden_layers=1).train() for _ in range(2))
    run, counts = how(compiled), []
    for ids, mask in batches:
        got, expected = (model(ids, attention_mask=mask).last_hidden_state for model in (run, plain))
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
        for hidden in (expected, got):
            hidden.square().sum().backward()
        counts.append(graphs())
    got, expected = ([p.grad for p in model.parameters() if p.grad is not None] for model in (compiled, plain))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "how"),
    [("rope", compile_layers), ("rope+t5", compile_whole), ("relative_key+deberta+test_layer_distance", compile_whole)],
)
def test_over_varying_lengths_training_recompiles_at_most_twice_and_changes_nothing(scheme, how):
    """And a batch without a mask and one of one text compile once more each."""
    known = list(batches(8))
    others = [(tokens(3, 8), None), (tokens(5, 9), None), *batches(3), (tokens(1, 7), None)]
    counts = assert_trains_alike(scheme, how, known + others)
    assert counts[WARM_UP - 1] > 0
    warm = counts[len(known) - 1]
    assert warm <= counts[WARM_UP - 1] + 2
    assert counts[-1] <= warm + 2


@pytest.mark.slow
def test_packed_rows_longer_than_a_table_compile():
    model = encoder("learned")
    limit = model.config.max_position_embeddings
    ids, positions = tokens(1, 2 * limit), torch.arange(limit).repeat(2)[None]
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        got, expected = (run(ids, position_ids=positions).last_hidden_state for run in (compiled, model))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_compiled_layers_get_tokens_without_padding():
    model = encoder("rope")
    seen = []
    linear = model.layers[0].attention.query
    compile_layers(model)
    ids, mask = padded([tokens(9, seed=1), tokens(2, seed=2)])

    class Watched(nn.Linear):
        def forward(self, x):
            seen.append(x.shape)
            return super().forward(x)

    linear.__class__ = Watched
    model(ids, attention_mask=mask)
    assert [tuple(shape)[:2] for shape in seen] == [(1, 11)]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler: install g++")
def test_the_default_backend_gives_the_same_numbers_and_gradients():
    assert_trains_alike("rope+t5", torch.compile, batches(2))  # a minute a layer
