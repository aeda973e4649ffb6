"""The command line is light, and everything is there, and registered, when it is asked for."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hf_posenc
from hf_posenc import SCHEMES
from tests.support.common import BUILTIN

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
config = hf_posenc.PosEncConfig(vocab_size=9, hidden_size=8, num_attention_heads=1, num_hidden_layers=1)
model = peft.get_peft_model(hf_posenc.PosEncModel(config), peft.LoraConfig())
print(*sorted({name.split(".")[-2] for name, _ in model.named_modules() if name.endswith("lora_A")}))
"""
TABLE = "from hf_posenc.model.scheme_table import SCHEMES\nprint(*sorted(SCHEMES))\n"
SEAM = """
from hf_posenc.model.configuration_posenc import PosEncConfig
from hf_posenc.model.seam import kernels
print(type(PosEncConfig.support).__name__, kernels.Dropout.__module__)
"""
COMPLETED = "PackageSupport hf_posenc.kernels.dropout"
MODELS, QUERY_VALUE = "PosEncModel PosEncForTokenClassification", "query value"


@pytest.mark.slow  # a process that imports transformers for each
@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (f"from transformers import AutoModel\nimport peft\nimport hf_posenc\n{LORA}{LOAD}", [QUERY_VALUE, MODELS]),
        (f"sys.argv = []\nimport hf_posenc\n{LOAD}", [MODELS]),
        (f"sys.argv[0] = '/bin/hf-posenc'\n{TABLE}import hf_posenc\nhf_posenc.PosEncConfig\n{LOAD}", [None, MODELS]),
        (f"sys.argv[0] = '/bin/hf-posenc'\n{SEAM}", [COMPLETED]),
        (f"sys.modules['wrapt'] = None\n{SEAM}", [COMPLETED]),
    ],
    ids=["transformers and peft", "hf_posenc, without arguments", "the table", "the command", "a bare image"],
)
def test_model_adapters_and_schemes_are_known_whatever_was_imported_first(code, printed):
    """The Auto classes know the model, LoRA takes BERT's targets, and the table of schemes is full."""
    pytest.importorskip("peft")
    schemes = " ".join(sorted(BUILTIN))
    assert in_a_fresh_process(code).splitlines() == [line or schemes for line in printed]


def test_the_table_of_names_holds_those_that_type_checkers_read():
    tree = ast.parse(Path(hf_posenc.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {node.module: " ".join(alias.name for alias in node.names) for node in imports} == hf_posenc._NAMES


PUBLIC = """
    PosEncConfig PosEncModel PosEncPreTrainedModel SIZES PosEncForSequenceClassification PosEncForMaskedLM
    PosEncForTokenClassification PosEncForQuestionAnswering PosEncForMultipleChoice
    fit load train predict evaluate TrainingResult TrainingReport PosEncClassifier PosEncRegressor compare Comparison
    convert Healing Conversion ConversionReport export ExportReport Int8Report publish Publication
    UserError Diverged Interrupted
    PositionScheme AddedPosition RotatedPosition DistanceBias Tokens register_scheme make_scheme SCHEMES
    plot check_scheme SCHEME_CHECKS CheckReport CheckResult apply_rotary sinusoidal_table scale_position_learning_rates
"""
"""What docs/stability.md promises, beside the classes of the schemes."""


def test_every_public_name_is_there_and_dir_shows_no_other():
    schemes = {SCHEMES[name].__name__ for name in BUILTIN}
    assert set(dir(hf_posenc)) == set(hf_posenc.__all__) == {*PUBLIC.split(), *schemes}
    assert all(getattr(hf_posenc, name) is not None for name in hf_posenc.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = hf_posenc.nonsense
