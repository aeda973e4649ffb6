"""The list of planted faults fits the package; `make mutations` plants them."""

from collections import Counter
from functools import cache

from tests.mutate import ROOT, mutations


def test_each_fault_can_be_planted_in_one_place():
    read = cache(lambda file: (ROOT / file).read_text(encoding="utf-8"))
    unfit = [fault for fault in mutations() if fault.old == fault.new or read(fault.file).count(fault.old) != 1]
    assert not unfit


def test_there_are_enough_faults_where_users_data_and_weights_are():
    assert len(set(mutations())) == len(mutations())
    counts = Counter(fault.file.split("/")[1] for fault in mutations())
    assert counts["model"] >= 40
    assert counts["data"] + counts["finetuning"] + counts["kernels"] >= 60
