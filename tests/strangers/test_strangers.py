"""Schemes written by strangers from the docs alone: they pass every check, and one does what its paper says."""

from dataclasses import replace

import bipe
import pytest
import repositioned
import torch

from hf_posenc import SCHEME_CHECKS, check_scheme
from hf_posenc.model.unpadding import TokenLayout

SEPARATOR = 75  # inside one of the texts of the checks
STRANGERS = {
    bipe.Bipe: {"separator_id": SEPARATOR},
    repositioned.Repositioned: {},
}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", STRANGERS, ids=lambda scheme: scheme.__name__)
def test_a_strangers_scheme_passes_every_check(scheme):
    travels = scheme is bipe.Bipe  # a clean process: one is enough, and this one imports scheme_math
    checks = [name for name in SCHEME_CHECKS if travels or name != "remote_code"]
    check_scheme(scheme, scheme_kwargs=STRANGERS[scheme], only=checks).raise_on_failure()


def test_bipe_counts_within_and_between_segments_of_each_sequence():
    scheme = bipe.Bipe(hidden_size=8, num_heads=2, max_positions=6, separator_id=9)
    ids = torch.tensor([[5, 9, 5, 5, 9, 5, 5]])
    positions, sequence = torch.tensor([[3, 4, 5, 0, 1, 2, 3]]), torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    layout = TokenLayout.from_batch(positions, position_ids=positions, seq_idx=sequence, unpad=False)
    tokens = replace(layout.tokens, _ids=ids)
    added = scheme.embed(torch.zeros(1, 7, 8), tokens)
    assert torch.equal(added, scheme.table(torch.tensor([[0, 1, 0, 0, 1, 0, 1]])))
    bias = scheme.bias(tokens)
    assert torch.equal(bias[0, 0, 3], bias[0, 0, 4])
    assert bias[0, 0, 4, 6] == bias[0, 0, 6, 3] == bias[0, 0, 0, 2] == -(2**-4)
    assert bias[0, 0, 0, 1] == bias[0, 1, 5, 6] == 0
