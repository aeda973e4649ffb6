"""transformers' own common tests of models, on every scheme; CONTRIBUTING.md says where they are to be had."""

import importlib
import inspect
import os
import sys
import types
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers.models.auto import modeling_auto

import hf_posenc
from hf_posenc import SCHEMES, PosEncConfig

pytestmark = pytest.mark.slow
SOURCES = os.environ.get("HF_POSENC_TRANSFORMERS")
if SOURCES is None:
    pytest.skip("HF_POSENC_TRANSFORMERS doesn't name transformers' sources", allow_module_level=True)
pytest.importorskip("parameterized")

SIZES: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 37}
SHAPE = (5, 7)


def common_module(name: str) -> Any:
    """A module of the folder `tests`; what it imports of folders that don't come along is empty."""
    package = types.ModuleType("transformers_tests")
    package.__path__ = [str(Path(str(SOURCES)) / "tests")]
    absent = {
        "exporters.test_export": {"ExportTesterMixin": object},
        "generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
        "utils.test_configuration_utils": {"config_common_kwargs": {}},
    }
    stubs = {part: types.ModuleType(part) for path in absent for part in (path, path.partition(".")[0])}
    for path, names in absent.items():
        vars(stubs[path]).update(names)
    modules = {f"transformers_tests.{path}": stub for path, stub in stubs.items()}
    for path, module in {"transformers_tests": package, **modules}.items():
        sys.modules.setdefault(path, module)
    with mock.patch("transformers.utils.direct_transformers_import"):
        return importlib.import_module(f"transformers_tests.{name}")


LISTS = {
    "PosEncModel": "",
    "PosEncForMaskedLM": "FOR_MASKED_LM_",
    "PosEncForSequenceClassification": "FOR_SEQUENCE_CLASSIFICATION_",
    "PosEncForTokenClassification": "FOR_TOKEN_CLASSIFICATION_",
    "PosEncForQuestionAnswering": "FOR_QUESTION_ANSWERING_",
    "PosEncForMultipleChoice": "FOR_MULTIPLE_CHOICE_",
}
"""Our classes, and transformers' list of each one's kind, which says what inputs it takes."""
common, configuration = common_module("test_modeling_common"), common_module("test_configuration_common")


class Tester:
    """What the tests ask for: sizes, a configuration, a batch."""

    batch_size, seq_length = SHAPE
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    is_training, num_labels, num_choices, type_sequence_label_size = True, 3, 4, 2

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def get_config(self) -> PosEncConfig:
        return PosEncConfig(**SIZES, vocab_size=99, num_labels=3, position_embedding_type=self.scheme)

    def prepare_config_and_inputs_for_common(self) -> tuple[PosEncConfig, dict[str, torch.Tensor]]:
        ids, mask = common.ids_tensor(SHAPE, 99), common.random_attention_mask(SHAPE)
        return self.get_config(), {"input_ids": ids, "attention_mask": mask}


def tests_of(scheme: str) -> type[unittest.TestCase]:
    class Tests(common.ModelTesterMixin, unittest.TestCase):
        all_model_classes = tuple(getattr(hf_posenc, name) for name in LISTS)

        def setUp(self) -> None:
            self.model_tester = Tester(scheme)
            self.config_tester = configuration.ConfigTester(
                self, config_class=PosEncConfig, hidden_size=32, num_attention_heads=4
            )
            for name, ending in LISTS.items():
                names = getattr(modeling_auto, f"MODEL_{ending}MAPPING_NAMES")
                names["posenc"] = name
                self.addCleanup(names.pop, "posenc")

        def test_config(self) -> None:
            self.config_tester.run_common_tests()

    takes_rope_parameters = "rope_parameters" in inspect.signature(SCHEMES[scheme]).parameters
    for name in dir(Tests):  # its configurations have no such parameters
        if name.startswith("test_model_rope") and not takes_rope_parameters:
            setattr(Tests, name, None)
    return Tests


for _scheme in SCHEMES:
    globals()[f"Test_{_scheme}"] = tests_of(_scheme)
