"""The list of planted faults fits the package; `make mutations` plants them."""

import pytest
from mutate import ROOT, mutations


@pytest.mark.parametrize("mutation", mutations(), ids=lambda one: f"{one.file}-{one.new[:30]}")
def test_each_fault_can_be_planted_in_one_place(mutation):
    assert mutation.old != mutation.new
    assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1


def test_there_are_enough_faults_in_enough_files():
    assert len(set(mutations())) == len(mutations()) >= 40
    assert len({one.file for one in mutations()}) >= 20
