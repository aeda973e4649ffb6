"""The public conformance checks: sound schemes pass all of them, and a broken one fails the check that is for it."""

import contextlib
import random
import re
import tempfile

import pytest
import torch

from hf_posenc import (
    SCHEME_CHECKS,
    SCHEMES,
    PosEncForSequenceClassification,
    PositionScheme,
    SinusoidalPosition,
    check_scheme,
    make_scheme,
)
from tests.support import broken_schemes as broken
from tests.support.common import BUILTIN, BY_HOOK, EVERY_HOOK, home_of, others_slow, tiny_config

CHEAP = [name for name in SCHEME_CHECKS if name not in ("export", "remote_code")]
SOUND = [broken.Sound, broken.SoundWaves, broken.SoundTurn, broken.SoundStateInADictionary, broken.SoundWindow]
SOUND += [broken.SoundDraw, broken.SoundSharpWaves]


ALONE = ["signature", "order", "shift", "max_length", "used", "padding", "packing", "attention"]
"""The checks of what a scheme says of itself, which a combination may hide, and of batches, which are quick."""


def combined(names, most=4):
    """The schemes in combinations: by what a shift does to them, and those that turn, or see no order, alone."""
    kinds = {}
    for name in names:
        scheme = make_scheme(tiny_config(name))
        is_alone = "+" in name or scheme.order_blind or scheme.uses("rotate")
        kinds.setdefault(name if is_alone else scheme.shift_invariant, []).append(name)
    return ["+".join(kind[first : first + most]) for kind in kinds.values() for first in range(0, len(kind), most)]


def passes(scheme, checks):
    report = check_scheme(scheme, only=checks).raise_on_failure()
    skipped = {result.name for result in report.results if result.outcome == "skipped"}
    declared = make_scheme(tiny_config(scheme)) if isinstance(scheme, str) else scheme
    assert ("used" in skipped) == declared.order_blind
    assert ("shift" in skipped) == (declared.shift_invariant is None)
    assert skipped <= {"used", "shift"}


@pytest.mark.parametrize("scheme", others_slow([*SOUND, *combined(EVERY_HOOK)], "rope"))
def test_sound_schemes_pass_every_check(scheme):
    passes(scheme, CHEAP)


@pytest.mark.parametrize("scheme", others_slow(EVERY_HOOK, *BY_HOOK))
def test_each_scheme_is_what_it_says(scheme):
    passes(scheme, ALONE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "kwargs"),
    [
        (
            "alibi+t5+deberta",
            {
                "alibi": {"directional": True, "learned": True, "per_layer": True},
                "t5": {"per_layer": True},
                "deberta": {"max_distance": 3, "terms": "p2c"},
            },
        ),
        ("tupe+lspe", {"tupe": {"reset_first": False}, "lspe": {"applies_to": "embeddings"}}),
    ],
)
def test_variants_pass_every_check(scheme, kwargs):
    report = check_scheme(scheme, scheme_kwargs=kwargs, only=CHEAP).raise_on_failure()
    assert report.scheme == f"{scheme}({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"


# That sound ones can be exported and load as remote code: test_new_scheme.py.
BROKEN = [
    (broken.Random, "repeats", "the same input twice: they differ by .*draw no random numbers", None),
    (broken.ChangesPositions, "repeats", r"embed changes tokens\.positions in place", None),
    (broken.ChangesEmbeddings, "repeats", "embed changes x in place.* Compute a new tensor", None),
    (broken.ChangesQueries, "repeats", "rotate changes q in place", None),
    (broken.SeedsInAHook, "repeats", "embed seeds PyTorch's random numbers.* Draw in init_weights", None),
    (broken.StaleTable, "repeats", "used before, and of a new one.* differ by .* compute it in each call", None),
    (broken.StaleTableOfTheModule, "repeats", r"are moved, .* change by 0\.0.* compute it in each call", None),
    (broken.RunningMean, "repeats", "used before, and of a new one.* differ by .* no checkpoint has", None),
    (broken.PositionalArguments, "signature", "argument 'num_heads' isn't keyword-only", ()),
    (broken.TupleDefault, "signature", r"default reach=\(4, 5\) doesn't survive a config\.json", ("saving",)),
    (broken.HalfPrecisionAngles, "shapes", r"rotary returns .* torch\.bfloat16", ("shift",)),
    (broken.FourHeads, "shapes", r"another size \(.*\) fails: .* 2 heads.* from what the constructor is given", ()),
    (broken.FirstPlaceOfTheRow, "padding", "length 9 padded on the left .*differ by", ("packing", "attention")),
    (broken.FirstTokenOfTheRow, "packing", "packed by position_ids .*unpad_inputs=False.*differ by", ()),
    (broken.PlacesForPositions, "permutation", "differ by .* use `tokens.positions` instead of arange", ()),
    (broken.ConstantVector, "order", "change the logits by .*, less than 0.001", ()),
    (broken.SeesOrder, "order", "declares order_blind, but", ()),
    (broken.SeesShift, "shift", "declares shift_invariant = True, but a shift by 37", ()),
    (broken.SeesNoShift, "shift", "declares shift_invariant = False, but a shift by 37", ()),
    (broken.NotItself, "attention", "sdpa on a sequence of length 1: not all numbers", ("padding", "packing")),
    (broken.UnusedWeights, "gradients", r"position\.spare\.weight gets no gradient", ()),
    (broken.ZeroTimesWeights, "gradients", r"gradient of model\.position\.spare\.weight is exactly zero", ()),
    (broken.InfiniteSlope, "gradients", "isn't finite.*sqrt", ("checkpointing",)),
    (broken.BackwardGradient, "gradients", r"logits change -1\.0\d times as much as it says.*detach", ()),
    (broken.KeptTable, "gradients", "second step fails: RuntimeError.*Keep nothing computed", ()),
    (broken.UsedUp, "checkpointing", "checkpointing fails: IndexError.*keep nothing of one call for the next", ()),
    (broken.SetInTheConstructor, "constructor", r"table\.weight is set in the constructor \(0\), and .* anew", ()),
    (
        broken.DrawnInTheConstructor,
        "constructor",
        r"drawn in .* \(std 3\S*\), .* \(std 0\.02\S*\)\. .* in init_weights",
        (),
    ),
    (broken.LateBuffer, "weights", "registers the buffer offset", ()),
    (broken.OwnParameter, "weights", "slope is a parameter of the scheme itself", ()),
    (broken.ReadsAChildsSize, "weights", "no attribute 'num_embeddings' .*call the child", ()),
    (broken.WeightWithoutItsModule, "weights", "weights of table are used without calling it", ()),
    (broken.TensorFromTheConstructor, "saving", r"device meta .*broken_schemes\.py, line", ("device",)),
    (broken.WritesOverLoadedWeights, "saving", r"position\.table\.weight comes back different", ()),
    (broken.PositionsInHalfPrecision, "bfloat16", "positions up to 3999 is .*more than three times", ()),
    (broken.OtherInHalfPrecision, "bfloat16", "at the first 9 positions is .* Compute the same in every dtype", ()),
    (broken.SumsInHalfPrecision, "bfloat16", "autocast to bfloat16 in 500 tokens is .*sums over tokens", ()),
    (broken.ConstantsOnTheCPU, "device", "another device than the CPU .*broken_schemes.*device=positions.device", ()),
    (broken.OneTooFew, "max_length", "max_length=129, but 129 tokens fail: IndexError", ()),
    (broken.TableWithoutLimit, "max_length", "IndexError", ()),
    (broken.BiasWithoutEffect, "used", "without bias the logits change by .*less than 0.001", ()),
    (broken.StateForNobody, "used", "rotary is overridden and rotate isn't", ()),
    # What no encoder can run; the check that is for it says why.
    (broken.HooksThatTakeLess, "signature", r"init_weights doesn't take \(self, std\)", None),
    (broken.ThreeHeads, "shapes", r"bias returns \(1, 3, 9, 9\) torch\.float32 for 1 rows of 9 .* and 4 heads", None),
    (broken.Float64Embeddings, "shapes", r"embed returns \(.*\) torch\.float64 for hidden states", None),
    (broken.UnknownSize, "signature", "argument 'width' is no size that a config knows .*has no default", None),
]


def expect(outcome, message, scheme, check, **options):
    result = check_scheme(scheme, only=[check], **options)[check]
    assert result.outcome == outcome
    assert re.search(message, result.message)


@pytest.mark.parametrize(("scheme", "check", "message"), [row[:3] for row in BROKEN])
def test_a_broken_scheme_fails_the_check_that_is_for_it(scheme, check, message):
    expect("failed", message, scheme, check)


ONE_EACH = {check: (scheme, others) for scheme, check, _, others in reversed(BROKEN) if others is not None}
"""The first broken scheme that is for a check, and what it fails beside."""


@pytest.mark.slow
@pytest.mark.parametrize("check", ONE_EACH)
def test_a_broken_scheme_fails_no_other_check(check):
    scheme, others = ONE_EACH[check]
    report = check_scheme(scheme, only=CHEAP)
    assert {result.name for result in report.results if not result.ok} == {check, *others}


@pytest.mark.parametrize("scheme", [broken.HooksThatTakeLess, broken.ThreeHeads, broken.UnknownSize])
def test_what_no_encoder_can_run_is_told_once(scheme):
    report = check_scheme(scheme, only=CHEAP)
    assert {result.name for result in report.results if not result.ok} <= {"repeats", "signature", "shapes"}
    assert {result.outcome for result in report.results[3:]} == {"skipped"}


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (broken.BranchOnData, "torch.export fails: .*broken_schemes.py, line .*Guard it by scheme_math.tracing"),
        pytest.param(
            broken.FirstPlaceOfTheRow,
            r"exported program and of the model at \(5, 17\) tokens: they differ by",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_schemes_that_cannot_be_exported_fail_that_check(scheme, message, capfd):
    expect("failed", message, scheme, "export")
    assert capfd.readouterr() == ("", "")


def test_a_process_without_hf_posenc_gives_the_same_by_the_checkpoints_code():
    assert check_scheme("rope", only=["remote_code"]).raise_on_failure().ok


@pytest.mark.slow  # a process of its own
def test_code_that_differs_from_what_travels_fails_the_remote_check(monkeypatch):
    monkeypatch.setattr(home_of(SCHEMES["alibi"]), "alibi_slopes", lambda heads: [1.0, 0.7, 0.3, 0.1][:heads])
    fixed = {"learned": False}  # learned slopes would travel as weights
    message = "process without hf_posenc, and here: they differ by .*module-level setting"
    expect("failed", message, "alibi", "remote_code", scheme_kwargs=fixed)


@pytest.mark.slow
def test_code_that_is_missing_fails_the_remote_check(monkeypatch):
    def save_without_a_file(self, folder):
        saved(self, folder)
        (folder / "position_alibi.py").unlink()

    saved = PosEncForSequenceClassification.save_pretrained
    monkeypatch.setattr(PosEncForSequenceClassification, "save_pretrained", save_without_a_file)
    expect("failed", "can't load the checkpoint: .*position_alibi", "alibi", "remote_code")


def test_a_class_without_a_file_of_its_own_skips_the_remote_check_and_says_why():
    class Local(broken.Sound):
        pass

    message = "<locals>.Local can't travel.*define the class at the top of a module file"
    expect("skipped", message, Local, "remote_code")


def test_every_check_is_failed_by_some_broken_scheme():
    proven = {row[1] for row in BROKEN} | {"export", "remote_code"}
    assert proven == set(SCHEME_CHECKS)


def test_where_the_same_input_gives_other_output_nothing_else_is_said():
    report = check_scheme(broken.Random, only=CHEAP)
    assert [result.name for result in report.results if result.outcome != "skipped"] == ["repeats"]
    assert report["padding"].message == "comparisons say nothing until `repeats` passes"


def test_a_report_says_how_many_ran_and_why_the_others_did_not():
    report = check_scheme(broken.PlacesForPositions, only=["padding", "permutation", "weights"])
    assert not report.ok
    assert re.fullmatch(r"PlacesForPositions: 3 of 3 checks ran in \d+\.\d s: 2 passed, 1 failed\.", report.summary)
    assert [result.name for result in report.results] == ["padding", "permutation", "weights"]
    assert report.seconds == pytest.approx(sum(result.seconds for result in report.results))
    assert "they differ by" in str(report)
    assert "1 failed" in str(report)
    with pytest.raises(KeyError, match="packing"):
        report["packing"]
    skipping = check_scheme(broken.SoundWaves, only=["shift"])
    assert ": 0 of 1 checks ran in " in skipping.summary
    assert "doesn't declare shift_invariant" in str(skipping)


@pytest.mark.parametrize(
    ("scheme", "kwargs", "rates"),
    [
        ("t5+rope", {}, "30 times for t5"),
        ("pope+alibi", {}, "10 times for pope; 30 times for alibi"),
        ("rope", {}, None),
        ("alibi", {"learned": False}, None),
    ],
)
def test_a_report_says_at_which_rate_the_schemes_own_weights_learn(scheme, kwargs, rates):
    said = str(check_scheme(scheme, scheme_kwargs=kwargs, only=["signature"]))
    assert ("Learning rate of its own weights" in said) is (rates is not None)
    assert rates is None or f"its own weights: {rates} (position_rate)" in said


def test_a_failure_raises_what_the_scheme_raised():
    with pytest.raises(
        AssertionError, match=r"(?s)TableWithoutLimit: 1 of 1 .*max_length: failed: IndexError"
    ) as caught:
        check_scheme(broken.TableWithoutLimit, only="max_length").raise_on_failure()
    assert isinstance(caught.value.__cause__, IndexError)


def test_nothing_is_left_behind(monkeypatch, tmp_path):
    class Draws(broken.WeightWithoutItsModule):
        """Fails, draws numbers, and interrupts the whole at last."""

        def uses(self, hook):
            torch.rand(3)
            return super().uses(hook)

        def init_weights(self, std):
            if len(built) == 3:
                raise KeyboardInterrupt
            built.append(torch.get_num_threads())

    built = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = dict(SCHEMES), torch.get_rng_state(), random.getstate()
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    try:
        for names in (["weights", "saving"], CHEAP):
            with torch.inference_mode(), contextlib.suppress(KeyboardInterrupt):
                check_scheme(Draws, only=names)
            assert torch.get_num_threads() == 2
            assert torch.get_default_dtype() == torch.float64
            assert (dict(SCHEMES), list(SCHEMES)) == (before[0], list(before[0]))
            assert torch.equal(torch.get_rng_state(), before[1])
            assert random.getstate() == before[2]
            assert "name" not in vars(Draws)
            assert list(tmp_path.iterdir()) == []
            assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
    assert built == [1, 1, 1]


def test_a_name_is_taken_for_a_while_only():
    class Mine(SinusoidalPosition):
        """Inherits the name of another."""

    class Named(broken.Sound):
        name = "mine"

    class Rope(broken.Sound):
        name = "rope"

    for scheme in (Mine, Named, Rope):
        own = vars(scheme).get("name")
        assert check_scheme(scheme, only=["order"]).ok
        assert vars(scheme).get("name") == own
    assert {*SCHEMES} == {*BUILTIN, "test_slope", "test_layer_distance"}  # other tests may change their order
    assert SinusoidalPosition.name == "sinusoidal"


class Short(broken.Sound):
    max_length = 8


def test_the_checks_run_with_other_arguments():
    assert check_scheme("sinusoidal", scheme_kwargs={"rms": None}, only=["order"]).ok
    short = check_scheme(Short, only=["padding"])
    assert "max_length=8 is too short for the checks, which use 32 tokens" in short["padding"].message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scheme": "rotary"}, "scheme='rotary' is unknown"),
        ({"scheme": "alibi", "scheme_kwargs": {"lerned": 1}}, "scheme_kwargs={'lerned': 1} is no argument of 'alibi'"),
        ({"scheme": 5}, "scheme=5 is of type int. Give type or str"),
        ({"scheme": PositionScheme}, "PositionScheme overrides no hook"),
        ({"scheme": "rope", "only": ["paddings"]}, "only='paddings' is no check. Choose from repeats, signature"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        check_scheme(**arguments)
    assert {*SCHEMES} == {*BUILTIN, "test_slope", "test_layer_distance"}  # other tests may change their order
