"""Schemes written by strangers from the docs alone: they pass every check, and two do what their paper says."""

import json
from dataclasses import replace

import bipe
import clipped_table
import content_speed
import conv_position
import data_distance
import gates
import polar
import pytest
import repositioned
import segments
import split_triangle
import tapered
import torch
import triangles
from common import schemes_restored

from hf_posenc import SCHEME_CHECKS, Tokens, check_scheme, register_scheme
from hf_posenc.model.unpadding import TokenLayout

SEPARATOR = 75  # inside one of the texts of the checks
STRANGERS = {
    split_triangle.SplitTriangle: {},
    bipe.Bipe: {"separator_id": SEPARATOR},
    clipped_table.ClippedTable: {},
    content_speed.ContentSpeed: {},
    conv_position.ConvPosition: {},
    data_distance.DataDistance: {},
    gates.Gates: {},
    polar.Polar: {},
    repositioned.Repositioned: {},
    segments.Segments: {"separators": [SEPARATOR]},
    tapered.Tapered: {},
    triangles.Triangles: {},
}
LEFT_OUT = {content_speed.ContentSpeed: "bfloat16"}
"""Its angle is the position times what a layer in bfloat16 says: far positions do lose precision."""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", STRANGERS, ids=lambda scheme: scheme.__name__)
def test_a_strangers_scheme_passes_every_check(scheme):
    checks = [name for name in SCHEME_CHECKS if name not in ("export", "remote_code", LEFT_OUT.get(scheme))]
    check_scheme(scheme, kwargs=STRANGERS[scheme], checks=checks, raise_on_failure=True)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", STRANGERS)
def test_a_strangers_scheme_can_be_exported(scheme):
    check_scheme(scheme, kwargs=STRANGERS[scheme], checks=["export"], raise_on_failure=True)


@pytest.mark.slow  # half a minute each
@pytest.mark.parametrize("scheme", [bipe.Bipe, conv_position.ConvPosition, segments.Segments])
def test_a_strangers_scheme_runs_in_onnx_runtime(scheme, run):
    with schemes_restored():
        (name,) = register_scheme(scheme)
        kwargs = json.dumps(STRANGERS[scheme])
        code, out, _ = run("check", name, "--scheme-kwargs", kwargs, "--only", "shapes", "--onnx")
    assert code == 0, out
    assert "passed   onnx" in out


@pytest.mark.slow  # a clean process for each
def test_a_strangers_scheme_travels():
    check_scheme(bipe.Bipe, checks=["remote_code"], raise_on_failure=True)  # with an import of position_math


def packed_tokens(positions, sequence, **contents):
    """Tokens of one row that holds several sequences."""
    batch = TokenLayout.from_batch(positions, position_ids=positions, seq_idx=sequence, unpad=False)
    return replace(batch.tokens, **contents)


def test_the_triangles_leave_one_half_of_each_head_on_each_side():
    q, k = torch.randn(2, 1, 2, 3, 4)
    logits = q @ k.transpose(-1, -2) / 2
    positions = torch.tensor([[2, 0, 1]])
    logits = logits + split_triangle.SplitTriangle().layer_bias(q, k, Tokens.from_positions(positions), 0)
    past, future = q[0, 0, 0, :2] @ k[0, 0, 1, :2] / 2, q[0, 0, 1, 2:] @ k[0, 0, 0, 2:] / 2
    torch.testing.assert_close(logits[0, 0, 0, 1], past)
    torch.testing.assert_close(logits[0, 0, 1, 0], future)
    torch.testing.assert_close(logits[0, 0, 1, 1], q[0, 0, 1] @ k[0, 0, 1] / 2)


def test_bipe_counts_within_and_between_segments_of_each_sequence():
    scheme = bipe.Bipe(hidden_size=8, num_heads=2, max_positions=6, separator_id=9)
    ids = torch.tensor([[5, 9, 5, 5, 9, 5, 5]])
    positions, sequence = torch.tensor([[3, 4, 5, 0, 1, 2, 3]]), torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    tokens = packed_tokens(positions, sequence, ids=ids)
    added = scheme.embed(torch.zeros(1, 7, 8), tokens)
    assert torch.equal(added, scheme.table(torch.tensor([[0, 1, 0, 0, 1, 0, 1]])))
    bias = scheme.bias(tokens)
    assert torch.equal(bias[0, 0, 3], bias[0, 0, 4])
    assert bias[0, 0, 4, 6] == bias[0, 0, 6, 3] == bias[0, 0, 0, 2] == -(2**-4)
    assert bias[0, 0, 0, 1] == bias[0, 1, 5, 6] == 0
