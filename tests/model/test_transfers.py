"""How often a GPU's host would have to wait for it: each value that Python reads of a tensor is a transfer.

Counted on a CPU, by eager attention, whose way through the model is the GPU's.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_posenc import PosEncForMaskedLM, PosEncForSequenceClassification, PosEncModel
from hf_posenc.model import unpadding
from tests.support.common import BUILTIN, tiny_config

aten = torch.ops.aten
READS = {
    *(aten.nonzero.default, aten._local_scalar_dense.default, aten.masked_select.default, aten.bincount.default),
    *(aten._unique2.default, aten.unique_consecutive.default, aten.unique_dim.default, aten.equal.default),
}
MASK = torch.tensor([[1] * 9, [1] * 5 + [0] * 4, [0] * 8 + [1]])
IDS = torch.randint(1, 60, (3, 9), generator=torch.Generator().manual_seed(3))


class Transfers(TorchDispatchMode):
    """Counts the operations inside whose results' shapes, or whose Python values, depend on what a tensor holds."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        indices = args[1] if function in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default) else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        repeats = function is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        self.count += function in READS or by_mask or repeats
        return function(*args, **kwargs)

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        tolist = torch.Tensor.tolist

        def counted(tensor):
            self.count += 1
            return tolist(tensor)

        self.patch.setattr(torch.Tensor, "tolist", counted)
        return super().__enter__()

    def __exit__(self, *error):
        self.patch.undo()
        return super().__exit__(*error)


def transfers(call):
    call()  # what is computed once per process
    with Transfers() as counter:
        call()
    return counter.count


def model_of(scheme, kind=PosEncModel, layers=2, **config):
    made = tiny_config(scheme, num_hidden_layers=layers, **config)
    made._attn_implementation = "eager"
    return kind(made)


@pytest.mark.parametrize("scheme", [*BUILTIN, "tupe+t5", "sinusoidal+rope+relative_key"])
def test_a_padded_batch_takes_one_transfer_at_any_depth(scheme):
    for layers in (1, 3):
        model = model_of(scheme, layers=layers).eval()
        assert transfers(lambda: model(IDS, attention_mask=MASK)) == 1  # noqa: B023
        assert transfers(lambda: model(IDS)) == 0  # noqa: B023


@pytest.mark.parametrize("scheme", BUILTIN)
def test_given_positions_and_packed_rows_take_one_too(scheme):
    model = model_of(scheme).eval()
    for positions in (torch.arange(1, 10)[None], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]] * 3)):
        assert transfers(lambda: model(IDS, attention_mask=MASK, position_ids=positions)) == 1  # noqa: B023


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("scheme", ["rope", "learned", "t5", "deberta"])
def test_a_training_step_takes_no_transfer_of_its_own(scheme, pooling):
    model = model_of(scheme, PosEncForSequenceClassification, num_labels=2, classifier_pooling=pooling).train()
    labels = torch.tensor([0, 1, 1])

    def step():
        model(IDS, attention_mask=MASK, labels=labels, num_items_in_batch=torch.tensor(3)).loss.backward()

    assert transfers(step) == 1
    masked = model_of(scheme, PosEncForMaskedLM).train()
    assert transfers(lambda: masked(IDS, attention_mask=MASK, labels=IDS).loss.backward()) == 1


def test_borders_with_the_longest_length_take_none_on_a_gpu(monkeypatch):
    borders = torch.tensor([0, 3, 9], dtype=torch.int32)
    packing = {"cu_seq_lens_q": borders, "max_length": 6}
    checked = unpadding.TokenLayout.from_batch(IDS[:1], **packing)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert transfers(lambda: unpadding.TokenLayout.from_batch(IDS[:1], **packing)) == 0
    trusted = unpadding.TokenLayout.from_batch(IDS[:1], **packing)
    assert vars(checked).keys() == vars(trusted).keys()
    of_tokens = vars(checked.tokens), vars(trusted.tokens)
    checked.tokens = trusted.tokens = None
    for name, value in {**vars(checked), **of_tokens[0]}.items():
        other = {**vars(trusted), **of_tokens[1]}[name]
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, name
    for waiting in ({"attention_mask": torch.ones(1, 9)}, {"position_ids": torch.arange(9)}):  # for these in any case
        with pytest.raises(ValueError, match=r"cu_seq_lens_q=\[0, 3, 3, 9\] doesn't cut"):
            unpadding.TokenLayout.from_batch(IDS[:1], cu_seq_lens_q=borders[[0, 1, 1, 2]], max_length=6, **waiting)
