"""Healing: it brings a swapped model nearer, in its steps, or says why it didn't."""

import json
import math
import os
import random
import re
import shutil
import signal
import sys
import time
from dataclasses import fields

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, TrainerCallback

from hf_posenc import Healing, UserError, convert, register_scheme
from hf_posenc.conversion import heal as module
from hf_posenc.conversion import measure
from tests.support.common import others_slow, schemes_restored
from tests.support.conversion import converted, sentences, tiny_source, tiny_tokenizer


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heal") / "bert"
    tiny_source(folder, "bert", "fill-mask", hidden_dropout_prob=0.1)
    tiny_tokenizer(folder)
    return folder


def heal(source, out=None, scheme="alibi", texts=240, **options):
    """Converts and heals; `texts` are given or made up."""
    made_up = sentences(texts) if isinstance(texts, int) else texts
    settings = {item.name: options.pop(item.name) for item in fields(Healing) if item.name in options}
    return converted(
        source, out, scheme=scheme, healing=Healing(made_up, **{"batch_tokens": 80, **settings}), **options
    )


def test_healing_brings_hidden_states_nearer(source, tmp_path):
    model, report = heal(source, tmp_path / "out", max_steps=60, learning_rate=1e-2)
    assert report.healing["steps"] == 60
    assert report.healing["loss_last"] < report.healing["loss_first"]
    assert report.after.distance < 0.9 * report.before.distance
    assert report.after.cosine > report.before.cosine
    assert report.after.order_r2 < 1
    assert report.before.texts == "held out of the healing text"
    assert model.config.hidden_dropout_prob == 0.1
    assert model.model.embeddings.dropout.p == 0.1
    assert model.model.embeddings.word_embeddings.weight.requires_grad
    words = load_file(source / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    healed = model.model.embeddings.word_embeddings.weight
    torch.testing.assert_close(healed[5:], words[5:])  # [CLS] alone carries what was special about position 0
    saved = json.loads((tmp_path / "out/conversion.json").read_text())
    assert saved["after"]["distance"] == report.after.distance
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_layers_are_trained_one_more_at_a_time_in_the_first_half(tmp_path, monkeypatch):
    tiny_source(tmp_path, num_hidden_layers=6)
    tiny_tokenizer(tmp_path)
    distil, depths = module.Distillation.distil, []

    def heard(trainer, body, inputs, depth):
        depths.append(depth)
        return distil(trainer, body, inputs, depth)

    monkeypatch.setattr(module.Distillation, "distil", heard)
    heal(tmp_path, scheme="sinusoidal", max_steps=40, measure=False)
    first, rest = depths[2:22], depths[22:]  # the largest step is tried twice
    assert (set(first), first) == ({1, 2, 3, 4, 5}, sorted(first))
    assert first.index(2) == 6  # 15 %
    assert rest == [None] * 20


HEAD = ("lm_head",)
ABOVE = ("model.layers.1", *HEAD)


@pytest.mark.parametrize(
    ("scheme", "depth", "still"), [("sinusoidal", 1, ABOVE), ("sinusoidal", None, HEAD), ("rope", 1, HEAD)]
)
def test_the_layers_above_stay_as_they_are_until_their_turn(source, monkeypatch, scheme, depth, still):
    monkeypatch.setattr(module, "depth_at", lambda progress, layers: depth)
    swapped = convert(source, scheme=scheme, measure=False).model
    healed, _ = heal(source, scheme=scheme, texts=40, max_steps=2, measure=False)
    before = dict(swapped.named_parameters())
    same = {name for name, value in healed.named_parameters() if torch.equal(value, before[name])}
    words = {"model.embeddings.word_embeddings.weight"}
    assert same - words == {name for name in before if name.startswith(still)} - words


def test_the_loss_is_the_squared_difference_in_units_of_the_originals_variance():
    ours, theirs = torch.randn(2, 3, 2, 5, 4).double()  # three states, of them the embeddings' first: not compared
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    expected = [((ours[i] - theirs[i])[real] ** 2).mean() / theirs[i][real].var() for i in (1, 2)]
    loss = module.hidden_states_loss(list(ours), list(theirs), real)
    torch.testing.assert_close(loss.double(), sum(expected) / 2, rtol=1e-5, atol=0)


def test_wider_models_learn_more_slowly(tmp_path):
    wide = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 1}
    tiny_source(tmp_path, **wide)
    tiny_tokenizer(tmp_path)
    _, report = heal(tmp_path, scheme="rope", texts=40, max_steps=1, measure=False)
    assert report.healing["learning_rate"] == pytest.approx(3e-4)  # up to 384 it is 6e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "farthest"), others_slow([(None, None), (0.0, None), (1.0, 1), (1.0, None)], (1.0, None))
)
def test_two_tokens_change_places_in_a_share_of_the_texts(source, monkeypatch, share, farthest):
    seen, padded = [], module.pad_rows
    monkeypatch.setattr(module, "pad_rows", lambda rows, pad: seen.append(rows) or padded(rows, pad))
    texts = sentences(64)
    options = {"swap_distance": farthest} if share is None else {"swap_distance": farthest, "swapped": share}
    _, report = heal(source, texts=texts, max_steps=40, eval_texts=["a b"], measure=False, **options)
    assert report.healing["swapped"] == (0.5 if share is None else share)
    assert report.healing["swap_distance"] == farthest
    known = {tuple(ids) for ids in AutoTokenizer.from_pretrained(source)(texts)["input_ids"]}
    rows = [tuple(row["input_ids"]) for batch in seen[1:41] for row in batch]  # the first batch was tried
    changed = [row for row in rows if row not in known]
    assert len(rows) > 2 * len(texts)
    assert {tuple(sorted(row)) for row in rows} == {tuple(sorted(row)) for row in known}
    assert abs(len(changed) / len(rows) - report.healing["swapped"]) < 0.1
    assert share == 0 or len(set(changed)) > 1.3 * len({tuple(sorted(row)) for row in changed})  # drawn anew each epoch
    distances = set()
    for row in changed:
        alike = [text for text in known if sorted(text) == sorted(row)]
        places = [[at for at, token in enumerate(row) if token != text[at]] for text in alike]
        (first, last) = min(places, key=len)
        distances.add(last - first)
        assert (row[0], row[-1]) == (2, 3)
    assert distances >= ({1, 2, 5} if farthest is None and share else set())
    assert farthest is None or distances == {farthest}


@pytest.mark.parametrize(
    ("tokens", "possible"),
    [
        ([2, 7, 8, 3], [{(2, 8, 7, 3)}] * 2),
        ([2, 7, 3], [{(2, 7, 3)}] * 2),
        ([2, 3], [{(2, 3)}] * 2),
        ([], [{()}] * 2),
        ([2, 7, 8, 3, 9, 3], [{(2, 8, 7, 3, 9, 3)}, {(2, 8, 7, 3, 9, 3), (2, 7, 9, 3, 8, 3), (2, 9, 8, 3, 7, 3)}]),
        ([7, 3, 9], [{(7, 3, 9)}, {(7, 3, 9), (9, 3, 7)}]),  # no pair at distance 1
        ([7, 8, 9], [{(8, 7, 9), (7, 9, 8)}, {(8, 7, 9), (7, 9, 8), (9, 8, 7)}]),
    ],
)
@pytest.mark.parametrize("farthest", [1, None])
def test_special_tokens_keep_their_places(tokens, possible, farthest):
    row = {"input_ids": list(tokens), "token_type_ids": [0] * len(tokens)}
    swapped = [measure.swap_tokens(row, {0, 2, 3}, random.Random(seed), farthest) for seed in range(40)]
    made = {tuple(swapped_row["input_ids"]) for swapped_row in swapped}
    assert made == possible[farthest is None]
    assert row["input_ids"] == tokens
    assert all(swapped_row["token_type_ids"] == row["token_type_ids"] for swapped_row in swapped)


@pytest.mark.parametrize(("farthest", "doublings"), [(None, 6), (31, 5), (1, 1)])
def test_tokens_are_swapped_near_as_often_as_far(farthest, doublings):
    row, draw = {"input_ids": list(range(64))}, random.Random(0)
    counts = [0] * doublings
    for _ in range(6000):
        swapped = measure.swap_tokens(row, set(), draw, farthest)["input_ids"]
        first, last = (at for at, token in enumerate(swapped) if token != at)
        assert (swapped[first], swapped[last]) == (last, first)
        counts[int(math.log2(last - first))] += 1  # distances 1, 2 to 3, 4 to 7, ...
    assert counts == pytest.approx([6000 / doublings] * doublings, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [True, False])
def test_in_mixed_precision_the_original_runs_in_it_too(source, monkeypatch, bf16):
    kinds = set()

    def heard(trainer, model, inputs, **options):
        watched = [encoder.base_model.layers[0].attention.query for encoder in (trainer.original, model)]
        hooks = [layer.register_forward_hook(lambda module, inputs, out: kinds.add(out.dtype)) for layer in watched]
        loss = compute(trainer, model, inputs, **options)
        for hook in hooks:
            hook.remove()
        return loss

    compute = module.Distillation.compute_loss
    monkeypatch.setattr(module.Distillation, "compute_loss", heard)
    model, _ = heal(source, max_steps=2, bf16=bf16, measure=False)
    assert kinds == {torch.bfloat16 if bf16 else torch.float32}
    assert not {"forward"} & {*vars(model), *vars(model.base_model)}  # autocast would stay on


def test_the_steps_are_said_and_the_learning_rate_falls_over_them(source, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rates = []

    class Listener(TrainerCallback):
        def on_step_end(self, *arguments, **kwargs):
            rates.append(kwargs["lr_scheduler"].get_last_lr()[0])  # of the step that comes

    class Heard(module.Distillation):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.add_callback(Listener)

    monkeypatch.setattr(module, "Distillation", Heard)
    _, report = heal(source, scheme="rope", max_steps=20, measure=False)
    out, err = capfd.readouterr()
    assert re.search(r"takes 20 steps of up to [0-9]+ tokens .the longest text has 1[0-9].: at most about .* MB", out)
    assert "%|" not in out + err  # no bars in a log
    assert not list(tmp_path.iterdir())  # the Trainer's own folder isn't left behind
    assert report.healing["learning_rate"] == 6e-4
    assert rates == pytest.approx([3e-4, *(6e-4 * (1 - step / 18) for step in range(19))])
    assert report.healing["steps"] == 20
    assert not report.notes


def test_equal_texts_are_held_out_together_and_the_same_ones_in_any_order(source):
    texts = sentences(100)
    texts += texts[:30]
    report, other = (heal(source, texts=given, max_steps=1)[1] for given in (texts, texts[::-1]))
    assert report.before.sequences == other.before.sequences == 10
    assert report.before.distance == pytest.approx(other.before.distance, rel=1e-6)
    assert report.healing["texts"] == other.healing["texts"] < 120  # of some that are held out both copies


OUT_OF_RANGE = [("learning_rate", -1), ("learning_rate", "0.001"), ("learning_rate", float("inf")), ("batch_tokens", 0)]
OUT_OF_RANGE += [("max_length", -3), ("swapped", 1.5), ("swapped", float("nan")), ("swap_distance", 0)]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"texts": ["one", "two"]}, "Healing has 2 different texts"),
        ({"texts": [""]}, "holds no text"),
        ({"texts": "nowhere.txt"}, "'nowhere.txt' can't be read: No such file or directory. Name"),
        ({"max_steps": 0}, "max_steps=0 is out of range. Give a whole number from 1"),
        ({"texts": [1, 2]}, "1 is no text. Give a file, or a list of strings"),
        *(({name: value}, re.escape(f"{name}={value!r} is out of range")) for name, value in OUT_OF_RANGE),
        ({"max_length": 41}, "max_length=41 is more than the source reads: its positions end at 40"),
        ({"seed": -1}, "seed=-1 is out of range. Give a whole number from 0 to 4294967295"),
        ({"scheme": None}, "Healing has no effect: the scheme stays 'learned'.* or name another scheme"),
        ({"eval_texts": []}, r"'\[\]' holds no text"),
    ],
)
def test_what_cannot_heal_is_refused(options, match, source, tmp_path):
    with pytest.raises(ValueError, match=match):
        heal(source, tmp_path / "out", **{"texts": 50, "scheme": "rope", "measure": False, **options})
    assert not list(tmp_path.iterdir())


SHIFT = """
from hf_posenc import PositionScheme

class Shift(PositionScheme):
    def embed(self, x, tokens):
        return x + tokens.positions.unsqueeze(-1) / 100
"""


@pytest.mark.parametrize(
    ("first", "match"),
    [
        ("from hf_posenc import load\n", "shift.py, line 1: 'from hf_posenc import load' can't travel"),
        (None, "__main__"),
    ],
)
def test_a_scheme_that_could_not_be_saved_is_refused_before_a_step_of_healing(first, match, source, tmp_path):
    out = tmp_path / "out"
    with schemes_restored("shift"):
        if first is None:
            exec(SHIFT, classes := {"__name__": "__main__"})
            register_scheme(classes["Shift"], "shift")
        else:
            (tmp_path / "shift.py").write_text(first + SHIFT)
            register_scheme(tmp_path / "shift.py", "shift")
        with pytest.raises(UserError, match=match):
            heal(source, out, "shift", texts=["", "only empty texts, which nobody has read yet"], max_steps=1)
        healed, _ = heal(source, None, "shift", texts=40, max_steps=1)  # what nobody saves needn't travel
    assert healed.config.position_embedding_type == "shift"
    assert not list(tmp_path.glob("out*"))


def test_files_are_read_as_the_healing_says_and_texts_as_they_are(source, tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("body;id\n" + "".join(f"{text};1\n" for text in [*sentences(50), " "]))
    reading = {"texts": path, "text_column": "body", "delimiter": ";", "max_steps": 1}
    _, report = heal(source, eval_texts=sentences(5, seed=1), **reading)
    assert (report.healing["texts"], report.before.sequences) == (50, 5)
    with pytest.raises(ValueError, match="no text to heal with that isn't measured on, too. Give more, or other eval_"):
        heal(source, eval_texts=path, **reading)


def test_texts_that_are_cut_are_counted(source):
    texts = sentences(50)
    _, report = heal(source, texts=texts, eval_texts=["a b"], max_length=8, max_steps=1, measure=False)
    assert report.healing["cut"] == sum(len(text.split()) > 6 for text in texts) > 0
    assert f"texts 50, cut {report.healing['cut']}, longest 8" in repr(report)


def test_text_that_is_no_healing_or_that_is_not_read_is_refused(source):
    with pytest.raises(ValueError, match=r"healing is of type list. Give Healing or None"):
        convert(source, scheme="rope", healing=sentences(50))
    with pytest.raises(ValueError, match="eval_texts has no effect with measure=False"):
        convert(source, scheme="rope", eval_texts=sentences(5), measure=False)


def test_weights_without_numbers_are_refused_after_the_last_step_too(source, tmp_path, monkeypatch):
    """The loss, taken before that step, is a number."""

    class Ruined(module.Distillation):
        def training_step(self, model, *arguments, **options):
            loss = super().training_step(model, *arguments, **options)
            if self.state.global_step == 2:
                model.base_model.layers[0].output.weight.data.fill_(float("nan"))
            return loss

    monkeypatch.setattr(module, "Distillation", Ruined)
    with pytest.raises(ValueError, match="diverged after 3 steps with learning_rate=.* lower one, in Python: Healing"):
        heal(source, tmp_path / "out", texts=100, max_steps=3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [float("nan"), 1.0])
def test_a_healing_that_makes_it_worse_is_left_out(source, monkeypatch, value):
    def ruin(model, *args, **options):
        kept.update({name: weight.clone() for name, weight in model.state_dict().items()})
        with torch.no_grad():
            model.base_model.layers[0].output.weight.fill_(value)
        return {"longest": 9}

    kept = {}
    monkeypatch.setattr(sys.modules[convert.__module__], "heal", ruin)
    model, report = heal(source, texts=100)
    assert report.after == report.before
    assert report.notes[-1] == "Healing took it farther from the original: the weights from before it are kept."
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, kept[name]), name


def test_one_command_swaps_heals_at_the_sources_lengths_and_then_extends(source, tmp_path):
    longer = {"max_position_embeddings": 160, "extension": "linear"}
    texts = [" ".join(sentences(9, n)) for n in range(40)]
    model, report = heal(source, tmp_path / "out", scheme="rope", texts=texts, max_steps=2, **longer)
    assert (report.healing["longest"], model.config.max_position_embeddings) == (40, 160)
    assert model.config.rope_parameters["factor"] == 4.0
    assert report.sentence().startswith("Converted bert from learned to rope: hidden states differ by ")
    assert report.extended.distance != report.after.distance  # linear scaling changes short texts
    assert report.trained_length == 40
    wanted = "is extended already, from 40 to 160 positions.* with scheme='alibi', and extend that: max_position_embed"
    with pytest.raises(ValueError, match=f"{wanted}dings=160"):
        heal(tmp_path / "out", max_steps=2)
    heal(source, tmp_path / "healed", scheme="rope", max_steps=2)
    then = convert(tmp_path / "healed", **longer).model
    assert then.config.rope_parameters == model.config.rope_parameters


def test_a_healed_table_grows_as_that_of_its_scheme_does(source):
    _, report = heal(source, None, "tupe", max_steps=1, max_position_embeddings=80, extension="interpolate")
    assert {"scheme": "tupe", "what": "40 positions -> 80", "how": "interpolate"} in report.carried


def test_what_is_measured_are_the_weights_that_16_bits_hold(tmp_path, monkeypatch):
    tiny_source(tmp_path).bfloat16().save_pretrained(tmp_path)
    tiny_tokenizer(tmp_path)
    measured, finer, agreement = [], [], measure.measure_agreement

    def heard(model, *rest):
        measured.append(model)
        finer.extend(name for name, weight in model.named_parameters() if (weight.bfloat16().float() != weight).any())
        return agreement(model, *rest)

    monkeypatch.setattr(sys.modules[convert.__module__], "measure_agreement", heard)
    heal(tmp_path, None, "fourier", max_steps=2, max_position_embeddings=80)
    assert (len(measured), finer) == (3, [])


def test_texts_to_heal_with_that_are_measured_on_are_counted(source, caplog):
    _, report = heal(source, texts=sentences(50), eval_texts=sentences(50)[:5], max_steps=1)
    left = 50 - sum(text in sentences(50)[:5] for text in sentences(50))
    assert report.healing["texts"] == left
    assert f"{50 - left} texts to heal with left out: measured on. {left} used." in caplog.text


def test_after_ctrl_c_the_same_command_goes_on_as_if_nothing_had_been(source, tmp_path, monkeypatch, caplog):
    whole, _ = heal(source, texts=60, max_steps=9, scheme="rope", measure=False)
    step = module.Distillation.training_step

    def pressed(trainer, *arguments, **options):
        time.sleep(0.1)
        if trainer.state.global_step == 4:
            signal.raise_signal(signal.SIGINT)
        return step(trainer, *arguments, **options)

    again = {"texts": 60, "max_steps": 9, "scheme": "rope", "measure": False}
    monkeypatch.setattr(module.Distillation, "training_step", pressed)
    with pytest.raises(KeyboardInterrupt, match="checkpoint-5' is kept. The same command goes on from there"):
        heal(source, f"{tmp_path / 'out'}/", **again)  # as a shell completes it
    monkeypatch.undo()
    with pytest.raises(ValueError, match="holds a healing with other texts, weights or settings. Go on with those, or"):
        heal(source, tmp_path / "out", **again, learning_rate=1e-3)
    shutil.copytree(tmp_path / "out.healing", tmp_path / "other.healing")
    assert heal(source, tmp_path / "other", **again, learning_rate=1e-3, overwrite=True)[1].healing["steps"] == 9
    shutil.copytree(tmp_path / "out.healing", tmp_path / "cut.healing")
    os.truncate(tmp_path / "cut.healing" / "checkpoint-5" / "trainer_state.json", 99)
    begun_anew, _ = heal(source, tmp_path / "cut", **again)
    steps = []

    def counted(trainer, *arguments, **options):
        time.sleep(0.1)
        steps.append(trainer.state.global_step)
        return step(trainer, *arguments, **options)

    monkeypatch.setattr(module.Distillation, "training_step", counted)
    resumed, report = heal(source, tmp_path / "out", **again)
    assert steps == [5, 6, 7, 8]
    assert "missing keys" not in caplog.text  # of the head, whose last weights are the embeddings'
    assert report.healing["steps"] == 9
    assert report.healing["seconds"] >= 9 * 0.1  # those before it was interrupted count
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
        assert torch.equal(begun_anew.state_dict()[name], value), name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "other", "out"]


@pytest.mark.parametrize("output", ["../out", "."])
def test_a_healing_that_is_killed_loses_a_quarter_of_its_steps_at_most(source, tmp_path, monkeypatch, output):
    step, steps = module.Distillation.training_step, []
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")

    def killed(trainer, *arguments, **options):
        steps.append(trainer.state.global_step)
        if len(steps) == 8:
            raise MemoryError
        return step(trainer, *arguments, **options)

    monkeypatch.setattr(module.Distillation, "training_step", killed)
    again = {"texts": 60, "max_steps": 8, "measure": False}
    with pytest.raises(MemoryError):
        heal(source, output, **again)
    assert heal(source, output, **again)[1].healing["steps"] == 8
    assert steps == [*range(8), 6, 7]


def test_the_longest_text_of_a_healing_is_one_that_it_used(source):
    made_up = [*sentences(59), " ".join(sentences(8))]
    lengths = [heal(source, texts=made_up, max_steps=steps, measure=False)[1].healing["longest"] for steps in (1, 60)]
    assert lengths[0] < lengths[1]


def test_a_folder_beside_out_that_is_no_healings_stays(source, tmp_path):
    (tmp_path / "out.healing").mkdir()
    (tmp_path / "out.healing" / "mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="holds mine.txt, which no healing wrote. Move it elsewhere"):
            heal(source, tmp_path / "out", max_steps=2, measure=False, overwrite=overwrite)
    convert(source, tmp_path / "out", measure=False)
    assert (tmp_path / "out.healing" / "mine.txt").exists()
    (tmp_path / "other.healing").write_text("mine")
    with pytest.raises(ValueError, match="other.healing' is a file, where checkpoints of the healing would lie"):
        heal(source, tmp_path / "other", max_steps=2, measure=False)


@pytest.mark.parametrize(("count", "tokens"), [(5000, 256), (1003, 256), (5, 256), (1, 32), (40, 2)])
def test_batches_hold_like_lengths_in_any_order_and_every_text_once(count, tokens):
    lengths = torch.randint(3, 60, (count,), generator=torch.Generator().manual_seed(1))
    batches = module.batches_of_like_lengths(lengths, tokens, seed=3)
    assert sorted(index for batch in batches for index in batch) == list(range(count))
    assert batches == module.batches_of_like_lengths(lengths, tokens, seed=3)
    parts = [lengths[batch] for batch in batches]
    assert all(len(part) == 1 or len(part) * int(part.max()) <= tokens for part in parts)
    if count < 5000:
        return
    assert batches != module.batches_of_like_lengths(lengths, tokens, seed=4)
    assert sum(int(part.max() - part.min()) for part in parts) / len(parts) < 4
    means = torch.tensor([float(part.float().mean()) for part in parts])
    assert abs(torch.corrcoef(torch.stack((means[:-1], means[1:])))[0, 1]) < 0.3  # not from long to short


def test_a_source_without_a_tokenizer_cannot_be_healed(tmp_path):
    tiny_source(tmp_path / "source")
    with pytest.raises(ValueError, match="has no tokenizer, so text can't heal it"):
        heal(tmp_path / "source")
