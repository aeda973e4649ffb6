"""Another scheme on trained weights: what is carried over, what is undone exactly, and how tables grow."""

import shutil

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_posenc import SCHEMES, PosEncForSequenceClassification, PosEncModel, UserError, convert
from hf_posenc.conversion import measure
from hf_posenc.conversion.report import Accounting, Agreement, ConversionReport
from hf_posenc.data.columns import note, notes_of
from tests.support.common import BUILTIN, encoder, others_slow, padded, tiny_config, word_tokenizer
from tests.support.conversion import converted, edit, jina, sentences, tiny_source, tiny_tokenizer
from tests.support.own_schemes import TurnedHeads


def source_of(*arguments, **fields):
    """A fixture: a folder with a source and its tokenizer."""

    @pytest.fixture(scope="module")
    def made(tmp_path_factory):
        folder = tmp_path_factory.mktemp("swap")
        tiny_source(folder, *arguments, **fields)
        tiny_tokenizer(folder)
        return folder

    return made


source, nomic = source_of("bert"), source_of("nomic_bert")
modern = source_of("modernbert", "fill-mask", num_hidden_layers=4)


TEXTS = padded([torch.tensor([2, *torch.randint(5, 20, (n,)), 3]) for n in (9, 4)])


def hidden(model, ids=TEXTS[0], mask=TEXTS[1]):
    with torch.no_grad():
        return model.eval()(ids, attention_mask=mask).last_hidden_state


def swapped(folder, out, old, new):
    """Converts and loads what was written, which must answer as what was returned; returns both, and the report."""
    model, report = converted(folder, out, scheme=new)
    assert (report.from_scheme, report.to_scheme, model.config.position_embedding_type) == (old, new, new)
    assert report.exact.hidden_max < 1e-5
    assert 0 < report.before.distance < 1
    assert -1 <= report.before.cosine <= 1
    assert report.before.order_r2 < 1
    again = type(model).from_pretrained(out)
    ids, mask = TEXTS
    torch.testing.assert_close(again(ids, attention_mask=mask)[0], model(ids, attention_mask=mask)[0])
    return model, again, report


ROPE_EXTENSIONS = ("linear", "dynamic", "yarn")
# Of schemes that are fitted alike, one is quick.
QUICK = ("none", "rope")


@pytest.mark.parametrize("scheme", others_slow([name for name in BUILTIN if name != "learned"], *QUICK))
def test_learned_becomes_every_scheme_and_says_how_near_it_is(scheme, source, tmp_path):
    _, _, report = swapped(source, tmp_path / "out", "learned", scheme)
    assert any("mean is in the token-type embedding" in line["what"] for line in report.carried)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [("pope", "none"), ("pope", "t5"), ("learned", "pope")])
def test_a_scheme_that_makes_queries_and_keys_anew_is_said_where_it_comes_and_goes(old, new, tmp_path):
    encoder(old).save_pretrained(tmp_path / "old")
    tiny_tokenizer(tmp_path / "old")
    report = convert(tmp_path / "old", scheme=new).report
    said = [line["scheme"] for line in report.carried if "makes q and k anew" in line["what"]]
    assert said == ["pope"]


def test_how_much_a_model_knows_of_word_order(source):
    original = convert(source).model
    rows, _ = measure.tokenize(AutoTokenizer.from_pretrained(source), sentences(40), 32)
    blind = convert(source, scheme="none").model
    assert measure.order_r2(original, original, rows, {2, 3}) == 1
    assert abs(measure.order_r2(blind, original, rows, {2, 3})) < 1e-6
    assert measure.order_r2(original, blind, rows, {2, 3}) is None
    assert measure.order_r2(original, original, rows, range(10**6)) is None  # nothing may be swapped
    assert measure.order_r2(original, original, [{"input_ids": [2, 7, 3, 8, 3]}], {2, 3}) is None  # no neighbours
    opposite = convert(source).model
    table = opposite.position.embedding.weight
    table.data[1:] = table.data[1:].flip(0)
    assert measure.order_r2(opposite, original, rows, {2, 3}) < 0
    # By hand, a text at a time: the first pair that is drawn for a text of two words is that of the two.
    two, swapped = torch.tensor([[2, 7, 8, 3]]), torch.tensor([[2, 8, 7, 3]])
    sums = [hidden(encoder, ids, None)[0].double().sum(0) for encoder in (original, opposite) for ids in (two, swapped)]
    change, other = sums[1] - sums[0], sums[3] - sums[2]
    expected = 1 - float((other - change).square().sum() / change.square().sum())
    assert measure.order_r2(opposite, original, [{"input_ids": [2, 7, 8, 3]}], {2, 3}) == pytest.approx(
        expected, rel=1e-3
    )


def test_tokens_that_are_added_stay_in_place_though_nobody_calls_them_special(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path)
    assert measure.special_tokens(tokenizer) == {0, 2, 3, 4}  # and no unknown word
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    assert bare.all_special_ids == []
    assert measure.special_tokens(bare) == {2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", others_slow(["t5", "kerple", "mlp_bias", "tupe"], "t5"))
def test_a_bias_fitted_to_another_one_is_nearer_than_none(scheme, tmp_path):
    encoder("alibi").save_pretrained(tmp_path)
    tiny_tokenizer(tmp_path)
    without = convert(tmp_path, scheme="none").report
    report = convert(tmp_path, scheme=scheme).report
    depends_on_distance_alone = scheme in ("t5", "kerple", "mlp_bias")
    share = 0.5 if depends_on_distance_alone else 0.95
    assert report.carried[-1]["r2"] > (0.9 if depends_on_distance_alone else 0.0)
    assert report.before.distance**2 < share * without.before.distance**2


def test_a_network_takes_over_the_table(source):
    wide = {"intermediate_size": 96}
    report = convert(source, scheme="fourier", scheme_kwargs=wide, seed=0).report
    fitted = report.carried[0]
    assert fitted["what"] == "fitted to the old vectors"
    assert fitted["r2"] > 0.9
    assert report.before.cosine > 0.99


def test_the_mean_of_the_table_stays_and_position_0_stays_with_cls(source):
    original = convert(source, measure=False).model
    bare = convert(source, scheme="none", measure=False).model
    table = original.position.embedding.weight
    words = original.embeddings.word_embeddings.weight
    kinds = original.embeddings.token_type_embeddings.weight
    both = bare.embeddings.word_embeddings.weight + bare.embeddings.token_type_embeddings.weight[0]
    torch.testing.assert_close(both[2], words[2] + table[0] + kinds[0])  # [CLS], as it was
    torch.testing.assert_close(both[7], words[7] + table[1:].mean(0) + kinds[0])


def test_without_token_types_the_mean_is_in_the_token_embedding(tmp_path):
    tiny_source(tmp_path, "distilbert")
    original = convert(tmp_path, measure=False).model
    bare, report = converted(tmp_path, scheme="none", measure=False)
    assert "in the token embedding" in report.carried[0]["what"]
    mean = original.position.embedding.weight[1:].mean(0)
    torch.testing.assert_close(
        bare.embeddings.word_embeddings.weight, original.embeddings.word_embeddings.weight + mean
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("interleaved", [False, True])
def test_the_choice_of_basis_changes_nothing_but_what_rope_turns(interleaved, bias, tmp_path):
    before = encoder("none", attention_bias=bias)
    before.save_pretrained(tmp_path)
    turned = convert(tmp_path, scheme="rope", scheme_kwargs={"interleaved": interleaved}, measure=False).model
    after = encoder("none", attention_bias=bias)
    after.load_state_dict(turned.state_dict())
    old, new = (model.layers[0].attention for model in (before, after))
    assert (new.query.weight - old.query.weight).abs().max() > 0.1
    torch.testing.assert_close(hidden(after), hidden(before), atol=1e-5, rtol=1e-4)
    # The directions that hold most of q.k are those that turn least.
    held = []
    for linear in (new.query, new.key):
        linear.register_forward_hook(lambda _, inputs, out: held.append(out.unflatten(-1, (4, 8)).square()))
    ids = torch.randint(1, 101, (32, 48))
    hidden(after, ids, torch.ones_like(ids))
    size = (held[0].mean((0, 1, 2)) * held[1].mean((0, 1, 2))).sqrt()
    pairs = size.view(4, 2).sum(1) if interleaved else size.view(2, 4).sum(0)
    assert pairs.tolist() == sorted(pairs.tolist())


# Every scheme is fitted by the test above; here one of each kind, and a mask.
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["alibi", "window", "none", "learned", "t5", "tupe", "deberta", "pope"])
def test_a_gated_encoder_without_biases_becomes_each_kind_of_scheme(scheme, nomic, tmp_path):
    _, again, _ = swapped(nomic, tmp_path / "out", "rope", scheme)
    assert (again.config.mlp_gated, again.config.attention_bias, again.config.mlp_bias) == (True, False, False)


@pytest.mark.slow
def test_a_window_that_comes_is_not_made_up_for_by_other_biases(nomic):
    models = {}
    for scheme in ("kerple", "window+kerple"):
        models[scheme], report = converted(nomic, scheme=scheme, measure=False)
    assert {"scheme": "window", "what": "its fixed biases come on top"} in report.carried
    both, alone = (models[name].position for name in ("window+kerple", "kerple"))
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(both.kerple.state_dict()[name], value)


@pytest.mark.parametrize("scheme", ["alibi+dual_triangle", "rope+alibi+dual_triangle"])
def test_other_biases_do_not_make_up_for_a_mask(scheme, nomic):
    model, report = converted(nomic, scheme=scheme, measure=False)
    assert {"scheme": "dual_triangle", "what": "its fixed biases come on top"} in report.carried
    assert float(model.position.alibi.log_slopes.weight.exp().max()) < 1  # -10000 over a few tokens is 100 and more


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", others_slow(["alibi+window", "rope", "learned+window", "none", "t5"], "rope", "learned+window")
)
def test_a_modernbert_keeps_its_window_or_gets_another_scheme(scheme, modern, tmp_path):
    model, again, _ = swapped(modern, tmp_path / "out", "rope+window", scheme)
    assert (again.config.norm_position, again.config.mlp_bias) == ("pre_but_first", False)
    far = hidden(model.base_model, torch.randint(5, 20, (1, 30)), None)
    assert torch.isfinite(far).all()
    if scheme == "rope":  # the angles stay as they were trained
        assert model.config.rope_parameters == convert(modern, measure=False).model.config.rope_parameters
        short = torch.randint(5, 20, (1, 4))  # no longer than the window
        torch.testing.assert_close(
            hidden(model.base_model, short, None), hidden(convert(modern).model.base_model, short, None)
        )


@pytest.mark.slow
def test_rope_parameters_that_are_given_leave_the_other_angles_as_they_were_trained(modern, nomic):
    local = {"local_rope_theta": 10000.0, "global_attn_every_n_layers": 3}
    linear = {"rope_type": "linear", "factor": 2.0}
    for given, wanted in (
        (linear, {**linear, "rope_theta": 160000.0, **local}),
        ({"rope_theta": 500.0}, {"rope_type": "default", "rope_theta": 500.0, **local}),
    ):
        for scheme in ("rope+window", "rope"):
            model = convert(modern, scheme=scheme, rope_parameters=given, measure=False).model
            assert model.config.rope_parameters == wanted
    model = convert(nomic, scheme="rope+alibi", measure=False).model
    assert model.config.rope_parameters["rope_theta"] == 1000.0
    for scheme in ("alibi+window", "none"):
        assert convert(modern, scheme=scheme, measure=False).model.config.rope_parameters is None


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
def test_a_modernbert_reads_longer_texts_by_each_scaling_of_its_global_layers(kind, modern):
    model = convert(modern, max_position_embeddings=160, extension=kind, measure=False).model
    rope = model.config.rope_parameters
    assert (rope["rope_type"], rope["factor"]) == (kind, 4.0)
    assert (rope["rope_theta"], rope["local_rope_theta"], rope["global_attn_every_n_layers"]) == (160000.0, 10000.0, 3)
    assert model.model.position.rope.local.rope_type == "default"


def test_one_global_layer_may_be_followed_by_any_number_of_local_ones(modern, tmp_path):
    shutil.copytree(modern, tmp_path / "source")
    edit(tmp_path / "source", layer_types=[f"{kind}_attention" for kind in ("full", "sliding", "sliding", "sliding")])
    assert convert(tmp_path / "source").report.exact.hidden_max < 1e-5


def test_an_extension_keeps_the_other_parameters_of_rope(nomic):
    given = {"rope_theta": 500.0, "beta_fast": 20.0}
    model = convert(nomic, max_position_embeddings=160, extension="yarn", rope_parameters=given, measure=False).model
    assert model.config.rope_parameters.items() >= given.items()
    with pytest.raises(ValueError, match="has no 'beta_fast' for rope_type='linear'"):
        convert(nomic, max_position_embeddings=160, extension="linear", rope_parameters=given)


@pytest.mark.parametrize("extension", ["linear", "dynamic", "yarn"])
def test_an_extended_rope_is_extended_from_where_it_was_trained(extension, source, tmp_path):
    convert(source, tmp_path / "longer", scheme="rope", max_position_embeddings=80, measure=False)
    options = {"max_position_embeddings": 160, "extension": extension, "measure": False}
    twice = convert(tmp_path / "longer", **options)
    once = convert(source, scheme="rope", **options)
    assert twice.model.config.rope_parameters == once.model.config.rope_parameters
    assert twice.report.trained_length == once.report.trained_length == 40


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "rope as it was"),
        ({"max_position_embeddings": 80, "extension": "linear"}, "rope as it was"),
        ({"rope_parameters": {"rope_theta": 50.0}}, "rope with other arguments"),
        ({"scheme_kwargs": {"interleaved": True}}, "rope with other arguments"),
    ],
)
def test_other_arguments_of_a_scheme_are_no_scheme_as_it_was(options, says, tmp_path):
    encoder("rope").save_pretrained(tmp_path)
    sentence = convert(tmp_path, **options).report.sentence()
    assert f", {says}" in sentence
    assert ("healing on text of yours" in sentence) == ("other" in says)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "nomic_bert"])
def test_the_factor_on_queries_is_undone(family, source, nomic):
    source = source if family == "bert" else nomic
    bare = convert(source, scheme="none", measure=False).model
    model = convert(source, scheme="deberta", measure=False).model
    with torch.no_grad():
        model.position.embedding.weight.zero_()
        for linear in (*model.position.keys, *model.position.queries):
            linear.bias.zero_()
    torch.testing.assert_close(hidden(model), hidden(bare), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("before", "after"), [("rope", "t5"), ("alibi", "rope"), ("learned+t5", "t5"), ("t5", "rope+t5")]
)
def test_any_scheme_becomes_any_other(before, after, tmp_path):
    encoder(before).save_pretrained(tmp_path / "source")
    model, report = converted(tmp_path / "source", tmp_path / "out", scheme=after)
    assert (report.from_scheme, report.to_scheme, report.exact) == (before, after, None)
    assert 0 < report.before.distance < 2
    if "t5" in before and "t5" in after:  # what both have stays
        ours = PosEncModel.from_pretrained(tmp_path / "source")
        part = [m.position if m.config.position_embedding_type == "t5" else m.position.t5 for m in (ours, model)]
        assert torch.equal(part[0].tables[0].weight, part[1].tables[0].weight)


@pytest.mark.parametrize("scheme", ["lspe", "sinusoidal", "fourier"])
def test_what_is_added_becomes_a_table_exactly(scheme, tmp_path):
    encoder(scheme, norm_position="post").save_pretrained(tmp_path)
    report = convert(tmp_path, scheme="learned").report
    assert report.before.hidden_max < 1e-5


def test_a_swap_that_changes_nothing_is_none(source):
    report = convert(source, scheme="learned", max_position_embeddings=40).report
    assert report.before is None


def test_tiling_leaves_short_texts_as_they_were_and_takes_long_ones(source, tmp_path):
    original = convert(source, measure=False).model
    model, report = converted(source, tmp_path / "out", max_position_embeddings=100)
    assert report.before.hidden_max == 0
    assert report.carried[0]["what"] == "40 positions -> 100"
    long = torch.randint(5, 20, (1, 100))
    assert hidden(model, long, torch.ones_like(long)).isfinite().all()
    with pytest.raises(ValueError, match="has positions 0 to 39"):
        original(long)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 100


def test_how_tables_grow(tmp_path):
    model = encoder("learned", max_position_embeddings=10)
    model.save_pretrained(tmp_path)
    table = model.position.embedding.weight

    def grown(length, extension=None):
        options = {"max_position_embeddings": length, "extension": extension, "measure": False}
        return convert(tmp_path, **options).model.position.embedding.weight

    tiled = grown(25, "tile")
    assert torch.equal(tiled[:10], table)
    assert torch.equal(tiled[10:19], table[1:])
    assert torch.equal(tiled[19], table[1])
    stretched = grown(19, "interpolate")
    torch.testing.assert_close(stretched[::2], table)
    torch.testing.assert_close(stretched[1], (table[0] + table[1]) / 2)
    assert torch.equal(grown(5), table[:5])


def test_relative_tables_grow_at_their_ends(tmp_path):
    encoder("relative_key").save_pretrained(tmp_path)
    model, report = converted(tmp_path, max_position_embeddings=100)
    assert report.before.hidden_max < 1e-6
    weights = model.position.tables[0].weight
    assert weights.shape[0] == 199
    assert torch.equal(weights[0], weights[36])


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", others_slow([f"learned+{name}" for name in ("t5", "alibi", "relative_key", "sinusoidal")], "learned+t5")
)
def test_what_comes_beside_a_scheme_that_stays_begins_without_effect(scheme, source):
    report = convert(source, scheme=scheme).report
    assert report.before.distance**2 < 1e-3
    assert "without effect" in report.carried[-1]["what"]
    assert not any("r2" in line for line in report.carried)


def test_a_scheme_that_nothing_scales_comes_on_top_and_that_is_said(source):
    kwargs = {"sinusoidal": {"learned_scale": False}}
    report = convert(source, scheme="learned+sinusoidal", scheme_kwargs=kwargs).report
    assert report.before.distance > 1e-3
    assert "on top of the vectors that stay" in report.carried[-1]["what"]


@pytest.mark.parametrize("kind", others_slow(ROPE_EXTENSIONS, "dynamic"))
def test_rope_grows_by_its_scaling_twice_as_once(kind, source, tmp_path):
    convert(source, tmp_path / "rope", scheme="rope", measure=False)
    convert(tmp_path / "rope", tmp_path / "twice", max_position_embeddings=80, extension=kind, measure=False)
    twice = convert(tmp_path / "twice", max_position_embeddings=320, extension=kind, measure=False).model
    once, report = converted(tmp_path / "rope", max_position_embeddings=320, extension=kind)
    parameters = once.config.rope_parameters
    assert twice.config.rope_parameters == parameters
    assert (parameters["rope_type"], parameters["factor"]) == (kind, 8.0)
    assert parameters.get("original_max_position_embeddings") == (None if kind == "linear" else 40)
    assert (report.before.hidden_max == 0) == (kind == "dynamic")  # up to the trained length nothing changes
    other = next(extension for extension in ROPE_EXTENSIONS if extension != kind)
    with pytest.raises(ValueError, match=f"scaled by '{kind}' already. Go on with extension='{kind}'"):
        convert(tmp_path / "twice", max_position_embeddings=320, extension=other)


def test_a_scaling_that_is_no_extension_can_be_left_as_it_is(tmp_path):
    encoder("rope", rope_parameters={"rope_type": "proportional", "factor": 2.0}).save_pretrained(tmp_path)
    longer = {"max_position_embeddings": 320, "measure": False}
    with pytest.raises(ValueError, match="scaled by 'proportional' already. Leave it out, or extend the checkpoint"):
        convert(tmp_path, extension="linear", **longer)
    assert convert(tmp_path, **longer).model.config.rope_parameters["rope_type"] == "proportional"


def test_a_table_beside_rope_is_tiled_while_rope_is_scaled(source, tmp_path):
    convert(source, tmp_path / "both", scheme="learned+rope", measure=False)
    before = convert(tmp_path / "both", measure=False).model
    after, report = converted(tmp_path / "both", max_position_embeddings=80, extension="yarn", measure=False)
    table = before.position.learned.embedding.weight
    assert torch.equal(after.position.learned.embedding.weight[:79], torch.cat((table, table[1:])))
    assert [line["how"] for line in report.carried] == ["tile"]


@pytest.mark.parametrize("scheme", others_slow(["learned", "tupe", "t5", "rope"], "learned", "rope"))
def test_fewer_positions_are_measured_on_shorter_texts(scheme, source):
    model, report = converted(source, scheme=scheme, max_position_embeddings=8)
    assert model.config.max_position_embeddings == 8
    assert report.before is None or report.before.distance < 1.0
    assert not any(line.get("how") == "tile" for line in report.carried)


def test_a_rotation_that_differs_by_head_gets_its_basis_by_head(source, monkeypatch):
    monkeypatch.setattr(TurnedHeads, "name", "turned_heads", raising=False)
    monkeypatch.setitem(SCHEMES, "turned_heads", TurnedHeads)
    model, report = converted(source, scheme="turned_heads")
    assert {"what": "q and k in a basis whose slow pairs hold most of q.k"} in report.carried
    attention = model.layers[0].attention
    size, speeds = attention.head_dim, model.position.speeds
    q, k = (linear.weight.detach().unflatten(0, (-1, size)) for linear in (attention.query, attention.key))
    held = (q.square().sum(-1) * k.square().sum(-1)).unflatten(1, (2, -1)).sum(1)  # (H, pairs)
    for head, speed in enumerate(speeds):
        slow, fast = speed.index(min(speed)), speed.index(max(speed))
        assert held[head, slow] > held[head, fast]


@pytest.mark.parametrize(
    ("distance", "words"), [(0.0123, "1.2 %"), (0.994, "99 %"), (0.997, "100 %"), (1.264, "126 %")]
)
def test_a_distance_is_said_in_percent(distance, words):
    before = Agreement("texts", 1, 1, distance=distance)
    report = ConversionReport(
        "a", "bert", "fill-mask", "learned", "rope", True, 8, Accounting([], {}, []), before=before
    )
    assert f"hidden states differ by {words} from the original" in report.sentence()


LONGER = {"max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("scheme", "options", "stays"),
    [
        ("rope", {}, True),
        ("rope", LONGER, True),
        ("learned", {**LONGER, "extension": "tile"}, True),
        ("rope", {"scheme": "alibi"}, False),
        ("rope", {"scheme_kwargs": {"interleaved": True}}, False),
        ("rope", {"rope_parameters": {"rope_theta": 500.0}}, False),
        ("rope", {**LONGER, "extension": "yarn"}, False),
        ("learned", {**LONGER, "extension": "interpolate"}, False),
    ],
)
def test_a_temperature_stays_where_the_logits_that_it_was_fitted_to_do(scheme, options, stays, tmp_path):
    model = PosEncForSequenceClassification(tiny_config(scheme))
    note(model.config, temperature=2.0, dialect={})
    model.save_pretrained(tmp_path)
    word_tokenizer(["a", "cat"]).save_pretrained(tmp_path)
    done = convert(tmp_path, measure=False, **options)
    assert notes_of(done.model.config) == {"dialect": {}} | ({"temperature": 2.0} if stays else {})
    assert any("temperature" in sentence for sentence in done.report.notes) != stays


@pytest.mark.parametrize(
    ("family", "scheme", "given", "expected"),
    [
        ("roformer", "rope+window", {"window": {"sliding_window": 64}}, {"rope": {"interleaved": True}}),
        ("roformer", None, {}, {"interleaved": True}),
        ("modernbert", "alibi+window", {"alibi": {"learned": False}}, {"window": {"sliding_window": 3}}),
        ("jina_bert", "alibi+window", {"window": {"sliding_window": 64}}, {"alibi": {"learned": False}}),
        ("bert", "alibi+t5", {"t5": {"num_buckets": 16}}, {"alibi": {"per_layer": True}}),
    ],
)
def test_arguments_that_are_not_given_stay(family, scheme, given, expected, tmp_path):
    """They may belong to trained weights, and interleaved has none that would tell."""
    jina(tmp_path) if family == "jina_bert" else tiny_source(tmp_path, family)
    made = convert(tmp_path, scheme=scheme, scheme_kwargs=given, measure=False).model.config.position_embedding_kwargs
    for name, value in expected.items():
        assert (made[name] | value if isinstance(value, dict) else value) == made[name]


def test_arguments_that_need_weights_which_the_source_lacks_are_refused(tmp_path):
    encoder("alibi", position_embedding_kwargs={"learned": False}).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="'alibi' has no 'log_slopes.weight', which the new arguments need"):
        convert(tmp_path, scheme_kwargs={"learned": True}, measure=False)
