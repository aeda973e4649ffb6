"""Tensor parallelism, as `tp_plan="auto"` of transformers does it: heads and feed-forward networks are split."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from hf_posenc import PosEncModel
from tests.support.common import perturb, tiny_config


@pytest.mark.parametrize("gated", [False, True])
def test_the_plan_names_every_linear_layer_of_the_encoder_and_no_other(gated):
    model = PosEncModel(tiny_config("rope", mlp_gated=gated))
    layers = {name for name, module in model.layers.named_modules(prefix="layers") if isinstance(module, nn.Linear)}
    kinds = {re.sub(r"\d+", "*", name) for name in layers}
    for plan in (model.config.base_model_tp_plan, model.tp_plan):
        assert plan.keys() - {"embed_tokens"} == kinds  # transformers 5.17 adds that name, which is nobody's here


IN_TWO_PROCESSES = """
import sys, torch, hf_posenc
ids = torch.arange(5, 25).view(2, 10)
for path in sys.argv[1:]:
    alone, split = (hf_posenc.PosEncModel.from_pretrained(path, tp_plan=plan).eval() for plan in (None, "auto"))
    assert split.layers[0].attention.query.weight.to_local().shape[0] == alone.config.hidden_size // 2
    with torch.no_grad():
        torch.testing.assert_close(split(ids)[0], alone(ids)[0], atol=1e-5, rtol=1e-5)
"""


@pytest.mark.slow
def test_heads_and_feed_forward_networks_split_between_two_processes_give_the_same(tmp_path):
    every = ({}, {"mlp_gated": True}, {"mlp_gated": True, "mlp_bias": False})
    folders = [str(tmp_path / f"model{number}") for number in range(len(every))]
    for fields, folder in zip(every, folders, strict=True):
        perturb(PosEncModel(tiny_config("learned+rope", **fields))).save_pretrained(folder)
    (tmp_path / "run.py").write_text(IN_TWO_PROCESSES)
    launcher = Path(__file__).parents[1] / "support" / "two_processes.py"
    words = [sys.executable, str(launcher), "hf_posenc,transformers.modeling_utils", str(tmp_path / "run.py"), *folders]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
