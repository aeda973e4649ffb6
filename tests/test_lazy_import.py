"""The command line is light, and everything is there, and registered, when it is asked for."""

import json
import subprocess
import sys

import pytest
from common import BUILTIN

import hf_posenc
from hf_posenc.model.scheme_table import SCHEMES
from hf_posenc.schemes.names import known_schemes

HEAVY = """
heavy = {'torch', 'transformers', 'datasets', 'sklearn', 'pandas', 'peft'} & set(sys.modules)
assert not heavy, heavy
"""


def in_a_fresh_process(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", f"import sys\n{code}", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"], ["predict", "--batch-size"]])
def test_help_version_and_usage_errors_import_no_framework(arguments):
    main = "import contextlib\nfrom hf_posenc.cli import main\nwith contextlib.suppress(SystemExit):\n    main()\n"
    in_a_fresh_process(f"sys.argv = {['hf-posenc', *arguments]}\n{main}{HEAVY}")


LOAD = """
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification
config = AutoConfig.for_model("posenc", vocab_size=9, hidden_size=8, num_attention_heads=1, num_hidden_layers=1)
print(type(AutoModel.from_config(config)).__name__, type(AutoModelForTokenClassification.from_config(config)).__name__)
"""
LORA = """
import peft
sizes = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
model = peft.get_peft_model(hf_posenc.PosEncModel(hf_posenc.PosEncConfig(**sizes)), peft.LoraConfig())
print(*sorted({name.split(".")[-2] for name, _ in model.named_modules() if name.endswith("lora_A")}))
"""
TABLE = "from hf_posenc.model.scheme_table import SCHEMES\nprint(*sorted(SCHEMES))\n"
FIRST = {
    "hf_posenc": f"import hf_posenc\n{LOAD}{LORA}",
    "transformers and peft": f"from transformers import AutoModel\nimport peft\nimport hf_posenc\n{LORA}{LOAD}",
    "hf_posenc, without arguments": f"import sys\nsys.argv = []\nimport hf_posenc\n{LOAD}",
    "the model": f"import hf_posenc.model.modeling_posenc\n{LOAD}",
    "the table": f"import sys\nsys.argv[0] = '/bin/hf-posenc'\n{TABLE}import hf_posenc\nhf_posenc.PosEncConfig\n{LOAD}",
}
FORKED = """
import contextlib, io, json, os, sys, traceback
# What takes long and isn't asked about.
import torch, torch._dynamo, torch.distributed.tensor, torch.export
import accelerate, huggingface_hub, safetensors, scipy.optimize, tokenizers
assert not {"hf_posenc", "transformers", "peft"} & set(sys.modules)
for code in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                exec(code, {"__name__": "__main__"})
            except BaseException:
                traceback.print_exc(file=sys.stdout)
        os.write(1, (json.dumps(out.getvalue()) + "\\n").encode())
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each code prints in a process of its own; one process imports PyTorch for all of them."""
    lines = in_a_fresh_process(FORKED, json.dumps([*FIRST.values()])).splitlines()
    return dict(zip(FIRST, map(json.loads, lines), strict=True))


@pytest.mark.slow  # a process that imports transformers for each
@pytest.mark.parametrize("first", FIRST)
def test_the_auto_classes_know_the_model_whatever_was_imported_first(printed, first):
    assert "PosEncModel PosEncForTokenClassification" in printed[first].splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("first", [first for first, code in FIRST.items() if LORA in code])
def test_lora_without_targets_takes_those_of_bert_whatever_was_imported_first(printed, first):
    pytest.importorskip("peft")
    assert "query value" in printed[first].splitlines()


@pytest.mark.slow
def test_the_table_of_schemes_is_full_though_it_is_imported_first(printed):
    assert printed["the table"].splitlines()[0].split() == sorted(known_schemes())


PUBLIC = """
    PosEncConfig PosEncModel PosEncPreTrainedModel PRESETS PosEncForSequenceClassification PosEncForMaskedLM
    PosEncForTokenClassification PosEncForQuestionAnswering PosEncForMultipleChoice
    fit load PosEncClassifier PosEncRegressor convert ConversionReport export ExportReport
    PositionScheme AddedPosition RotatedPosition DistanceBias Tokens register_scheme make_scheme SCHEMES
    check_scheme SCHEME_CHECKS CheckReport CheckResult apply_rotary sinusoidal_table scale_position_learning_rates
"""
"""What docs/stability.md promises, beside the classes of the schemes."""


def test_every_public_name_is_there_and_dir_shows_no_other():
    schemes = {SCHEMES[name].__name__ for name in BUILTIN}
    assert set(dir(hf_posenc)) == set(hf_posenc.__all__) == {*PUBLIC.split(), *schemes}
    assert all(getattr(hf_posenc, name) is not None for name in hf_posenc.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = hf_posenc.nonsense
