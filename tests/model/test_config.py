"""PosEncConfig: what it accepts, what it refuses, and that a checkpoint's config says all."""

import copy
import inspect
import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig
from transformers.testing_utils import set_config_for_less_flaky_test

from hf_posenc import SCHEMES, SIZES, PosEncConfig, PosEncForSequenceClassification, PosEncModel, __version__
from tests.support.common import BUILTIN, encoder, home_of, tiny_config
from tests.support.remote_code import AUTO_MAP


def together(schemes: str, kwargs: dict | None = None) -> dict:
    """Fields of a combination."""
    return {"position_embedding_type": schemes, "position_embedding_kwargs": kwargs}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 0}, "hidden_size=0 is out of range. It must be a whole number from 1"),
        ({"type_vocab_size": -1}, "type_vocab_size=-1 is out of range. It must be a whole number from 0"),
        ({"embedding_size": 0}, "embedding_size=0 is out of range"),
        ({"max_position_embeddings": 2**24 + 1}, "max_position_embeddings=16777217 .* from 1 to 16777216"),
        ({"hidden_size": 50, "num_attention_heads": 4}, "hidden_size=50 isn't a multiple of num_attention_heads=4"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob=1.5 is out of range. A probability"),
        ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob=-0.1"),
        ({"classifier_dropout": float("nan")}, "classifier_dropout=nan is out of range"),
        ({"initializer_range": -0.02}, "initializer_range=-0.02"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps=0.0 is out of range. It must be a positive number"),
        ({"label_scale": 2.0}, "label_scale=2.0 are for a regression, and problem_type is None. Give problem_type="),
        ({"pad_token_id": 200}, "pad_token_id=200 is outside the vocabulary of 101 tokens"),
        ({"interleaved": True}, r"an argument of the scheme. Give it as position_embedding_kwargs=\{'interleaved'"),
        (
            {"norm_position": "before"},
            "norm_position='before' is unknown. Choose one of pre, pre_only, pre_but_first, post",
        ),
        ({"norm_type": "batch_norm"}, "norm_type='batch_norm' is unknown. Choose one of layer_norm, rms_norm"),
        ({"token_dropout": -1}, "token_dropout=-1 is out of range. It must be a whole number from 0"),
        ({"token_dropout": 101}, "token_dropout=101 is outside the vocabulary of 101 tokens. Give the mask token's id"),
        ({"classifier_pooling": "avg"}, "classifier_pooling='avg' is unknown. Choose one of mean, cls, max"),
        ({"classifier_norm": True}, "classifier_norm=True is a norm after the dense layer. Give classifier_hidden_act"),
        ({"hidden_act": "gelo"}, "hidden_act='gelo' is unknown. Choose one of gelu, gelu_10"),
        ({"classifier_hidden_act": "tan"}, "classifier_hidden_act='tan' is unknown. Choose one of .* tanh"),
        ({"position_embedding_type": "zzz"}, "joined by '.'; register_scheme adds one of your own"),
        ({"position_embedding_type": "ropee"}, "'ropee' is unknown. Did you mean 'rope'. Choose one of none"),
        (
            {"position_embedding_type": "lspe", "position_embedding_kwargs": {"activaton": "relu"}},
            "position_embedding_kwargs={'activaton': 'relu'} is no argument of 'lspe'. Did you mean 'activation'",
        ),
        ({"position_embedding_type": "none", "position_embedding_kwargs": {"std": 1}}, "of 'none'. It takes dropout"),
        (
            {"position_embedding_type": "learned", "position_embedding_kwargs": {"max_positions": 9}},
            "no argument of 'learned'.* Sizes and rope_parameters are fields of the config",
        ),
        ({"position_embedding_type": "learned", "rope_parameters": {"rope_theta": 5.0}}, "rope_parameters=.*no effect"),
        ({"architectures": [[]]}, r"architectures=\[\[\]\] is no list of the names of model classes"),
        ({"architectures": True}, "architectures=True is no list of the names of model classes"),
        ({"problem_type": "regresion"}, "problem_type='regresion' is unknown. Choose one of regression, single"),
        ({"position_embedding_kwargs": {"interleaved": "no"}}, "{'interleaved': 'no'} is neither True nor False"),
        (
            {"position_augmentation": "shuffle"},
            "position_augmentation='shuffle' is unknown. Choose one of none, shift",
        ),
        ({"position_augmentation_length": 0}, "position_augmentation_length=0 is out of range"),
        ({"hiden_size": 3}, "PosEncConfig has no field 'hiden_size' .value 3.. The nearest: .*hidden_size"),
        ({"atn_implementation": 3}, "The nearest: .*attn_implementation"),
        ({"rope_parameter": 3}, "The nearest: .*rope_parameters"),
        ({"is_decoder": 3}, "no field 'is_decoder' .*set it on the config that was made: config.is_decoder"),
        (together("none+rope"), r"'none\+rope' makes no sense: .*'none' adds nothing to another. Use 'rope'"),
        (together("t5+learned+t5"), r"different schemes, .* Use 't5\+learned'"),
        (together("rope+"), r"'rope\+' makes no sense: .* Use 'rope'"),
        (together("learned+rop"), "position_embedding_type='rop' is unknown. Did you mean 'rope'"),
        (together("PoPE"), "'PoPE' is unknown. Did you mean 'pope'"),
        (
            together("learned+t5", {"num_buckets": 8}),
            r"{'num_buckets': 8} doesn't fit 'learned\+t5'.*given by scheme: {'learned': {...}, 't5'",
        ),
        (together("learned+t5", {"rope": {}}), r"{'rope': {}} doesn't fit 'learned\+t5'"),
        (
            together("learned+t5", {"t5": {"buckets": 8}}),
            "{'buckets': 8} is no argument of 't5'. Did you mean 'num_buckets'",
        ),
        ({**together("learned+t5"), "num_buckets": 8}, r"position_embedding_kwargs={'t5': {'num_buckets': 8}}"),
    ],
)
def test_values_out_of_range_are_named_with_what_is_accepted(values, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"position_embedding_type": "learned", "position_embedding_kwargs": {"std": "wide"}},
            "std='wide' is out of range. It must be a positive number, or 0",
        ),
        ({"rope_parameters": {"rope_type": "yarrn"}}, "rope_type='yarrn' is unknown"),
        ({"hidden_size": 20, "num_attention_heads": 4}, "RoPE turns pairs, but 5 of head_dim=5"),
    ],
)
def test_values_of_a_schemes_arguments_are_refused_before_the_model_has_weights(values, message, monkeypatch):
    config = tiny_config(**values)
    monkeypatch.setattr(home_of(PosEncModel), "PosEncEmbeddings", None)
    with pytest.raises(ValueError, match=message):
        PosEncModel(config)


@pytest.mark.parametrize(("field", "value"), [("hidden_size", "32"), ("unpad_inputs", "yes"), ("rope_parameters", 5)])
def test_wrong_types_are_named(field, value):
    with pytest.raises(StrictDataclassFieldValidationError, match=field):
        PosEncConfig(**{field: value})


def test_what_every_transformers_config_takes_is_taken():
    theirs = {"num_labels": 3, "output_attentions": False, "attn_implementation": "eager", "use_cache": False}
    theirs |= {"sep_token_id": 3, "mask_token_id": 4, "cls_token_id": 2, "torch_dtype": "bfloat16"}
    config = tiny_config(**theirs)
    assert (config.num_labels, config._attn_implementation, config.dtype) == (3, "eager", torch.bfloat16)
    assert (config.sep_token_id, config.mask_token_id) == (3, 4)
    assert tiny_config(id2label={0: "a", 1: "b", 2: "c"}).num_labels == 3


def written(folder: Path, **values: object) -> Path:
    """A folder with a config file that says this too."""
    tiny_config().save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": None, **values}))
    return folder


def test_unknown_keys_of_a_file_are_kept_and_one_like_a_field_is_said_once(tmp_path, caplog):
    logging.Logger.warning_once.cache_clear()
    theirs = {"bos_token_id": 1, "eos_token_id": 2, "mask_token_id": 3, "sentence_transformers": {"version": "6"}}
    theirs |= {"custom_pipelines": {}, "is_decoder": False, "from_the_future": [1]}
    not_read = {"max_length": 20, "top_k": 5, "token_rms": 3, "embedding_width": 7}  # of generation, and properties
    for folder in (written(tmp_path, **theirs, **not_read, hiden_size=7), tmp_path / "again"):
        config = PosEncConfig.from_pretrained(folder)
        assert {name: getattr(config, name) for name in theirs} == theirs
        assert (config.hidden_size, config.hiden_size, config.token_rms) == (32, 7, 0.02)
        config.save_pretrained(tmp_path / "again")
    assert caplog.messages == ["The configuration's 'hiden_size' has no effect. Did you mean 'hidden_size'?"]


@pytest.mark.parametrize(("version", "warns"), [("9999.1.0", True), (__version__, False), ("0.0.1", False)])
def test_a_newer_checkpoint_warns_and_one_saved_here_is_this_codes(version, warns, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    config = PosEncConfig.from_dict(tiny_config().to_dict() | {"posenc_version": version})
    assert (f"written by hf_posenc {version}, the code here is {__version__}" in caplog.text) == warns
    PosEncModel(config).save_pretrained(tmp_path)
    assert PosEncConfig.from_pretrained(tmp_path).posenc_version == __version__


SIZES_OF_THE_CONFIG = {"hidden_size", "head_dim", "num_heads", "num_layers", "max_positions", "rope_parameters"}


@pytest.mark.parametrize("scheme", BUILTIN)
def test_a_config_survives_its_file_with_every_resolved_argument(scheme, tmp_path):
    config = tiny_config(scheme, num_labels=4)
    PosEncModel(config)  # it completes the arguments
    assert {*config.position_embedding_kwargs} == {*inspect.signature(SCHEMES[scheme]).parameters} - SIZES_OF_THE_CONFIG
    config.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["position_embedding_kwargs"] == config.position_embedding_kwargs
    unresolved = {name for name, value in config.position_embedding_kwargs.items() if value is None}
    assert unresolved <= {"position_buckets", "norm_eps"}  # of `deberta`: there are none
    usual = {"rope_type": "default", "rope_theta": 10000.0}
    assert config.rope_parameters == (usual if scheme == "rope" else None)
    assert values["posenc_version"] == __version__
    assert values["auto_map"] == AUTO_MAP
    again = AutoConfig.from_pretrained(tmp_path)
    assert type(again) is PosEncConfig
    for field in PosEncConfig.__dataclass_fields__:
        if field not in ("transformers_version", "dtype"):
            assert getattr(again, field) == getattr(config, field), field
    assert copy.deepcopy(again).to_dict() == again.to_dict()
    assert PosEncConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


@pytest.mark.parametrize("scheme", ["rope", "learned+rope"])
def test_rope_has_its_usual_parameters_from_the_start_and_a_scheme_set_later_has_none(scheme):
    config = tiny_config(scheme)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    config.position_embedding_type = "alibi"
    assert PosEncModel(config).config.rope_parameters is None
    assert tiny_config("alibi").rope_parameters is None
    config = tiny_config(scheme, rope_parameters={"rope_theta": 500.0})
    config.position_embedding_type = "alibi"
    with pytest.raises(ValueError, match="has no effect on position_embedding_type='alibi'. Leave it out"):
        PosEncModel(config)


def test_another_scheme_on_loading_drops_the_old_ones_arguments(tmp_path):
    model = PosEncModel(tiny_config("lspe", position_embedding_kwargs={"activation": "relu"}))
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, position_embedding_type="rope")
    assert config.position_embedding_kwargs is None
    assert PosEncModel(config).config.position_embedding_kwargs == {"interleaved": False}
    back = PosEncConfig.from_dict(config.to_dict(), position_embedding_type="none")
    assert back.position_embedding_kwargs is back.rope_parameters is None
    same = AutoConfig.from_pretrained(tmp_path, hidden_dropout_prob=0.5)
    assert same.position_embedding_kwargs["activation"] == "relu"
    assert same.hidden_dropout_prob == 0.5


@pytest.mark.parametrize("scheme", BUILTIN)
def test_a_field_set_later_counts_as_in_the_constructor(scheme):
    """Also for what the scheme's arguments are derived from, and for the scheme itself."""
    other = BUILTIN[BUILTIN.index(scheme) - 1]
    yarn = {"rope_type": "yarn", "factor": 2.0}
    for values in (
        {"hidden_size": 64, "num_attention_heads": 8, "max_position_embeddings": 128, "num_hidden_layers": 3},
        {"embedding_size": 16, "initializer_range": 0.1, "scale_embeddings": True},
        {"position_embedding_type": other},
        {"position_embedding_type": "rope", "rope_parameters": yarn, "max_position_embeddings": 128},
        {"position_embedding_type": "alibi+rope" if other in ("none", "rope", "pope") else f"{other}+rope"},
    ):
        config = tiny_config(scheme, position_embedding_kwargs=None)
        for name, value in values.items():
            setattr(config, name, value)
        with torch.device("meta"):
            changed = PosEncModel(config)
            expected = PosEncModel(tiny_config(scheme, position_embedding_kwargs=None, **values))
        assert changed.config.to_dict() == expected.config.to_dict()


def test_arguments_changed_in_place_stay_as_they_were_set():
    config = tiny_config("learned", position_embedding_kwargs={"std": 0.1})
    config.position_embedding_kwargs["std"] = 0.5
    config.hidden_size = 64
    assert PosEncModel(config).config.position_embedding_kwargs == {"std": 0.5, "dropout": 0.0}
    config.position_embedding_kwargs["stdd"] = 0.5
    with pytest.raises(ValueError, match="'stdd'.*Did you mean 'std'"):
        PosEncModel(config)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("classifier_pooling", "avg", "classifier_pooling='avg' is unknown. Choose one of mean, cls, max"),
        ("hidden_size", 0, "hidden_size=0 is out of range"),
    ],
)
def test_a_field_is_checked_where_it_is_set(name, value, match):
    config = PosEncModel(tiny_config()).config
    with pytest.raises(ValueError, match=match):
        setattr(config, name, value)
    assert getattr(config, name, None) != value


@pytest.mark.parametrize("name", ["max_seq_length", "my_note", "norm_eps", "pooling", "hiden_size", "interleaved"])
def test_any_other_attribute_may_be_set_and_is_kept(name, tmp_path):
    config = tiny_config()
    setattr(config, name, 1.0)
    PosEncModel(config).save_pretrained(tmp_path)
    assert getattr(PosEncConfig.from_pretrained(tmp_path), name) == 1.0


def test_the_config_takes_what_the_tests_of_transformers_set_on_every_config():
    config = tiny_config()
    set_config_for_less_flaky_test(config)
    assert (config.layer_norm_eps, config.norm_eps) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_attention_heads", 2),
        ("num_hidden_layers", 1),
        ("num_hidden_layers", 3),
        ("type_vocab_size", 0),
        ("embedding_size", 32),
        ("tie_word_embeddings", False),
        ("hidden_act", "relu"),
        ("mlp_gated", True),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("norm_position", "post"),
        ("norm_type", "rms_norm"),
        ("token_dropout", 4),
        ("position_embedding_type", "alibi"),
        ("position_embedding_kwargs", {"interleaved": True}),
        ("rope_parameters", {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
    ],
)
def test_a_config_that_does_not_describe_the_weights_is_not_saved(name, value, tmp_path):
    model = PosEncForSequenceClassification(tiny_config("rope"))
    built = copy.deepcopy(getattr(model.config, name))
    setattr(model.config, name, value)
    with pytest.raises(ValueError, match=f"config.{name}=.* isn't what this model was built with.*Set it back"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    setattr(model.config, name, built)
    model.save_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "scheme", "value", "fault"),
    [
        ("position_embedding_kwargs", "t5", {"num_buckets": np.int64(32)}, "of type int64"),
        ("position_embedding_kwargs", "t5+window", {"t5": {"num_buckets": np.int64(32)}}, "of type int64"),
        ("position_embedding_kwargs", "t5", {"num_buckets": {1: 5}}, "of type int,"),
        ("position_embedding_kwargs", "t5", {"num_buckets": {None: 5}}, "of type NoneType,"),
        ("rope_parameters", "rope", {"rope_type": "default", "rope_theta": np.int64(100)}, "of type int64"),
    ],
)
def test_what_config_json_would_not_give_back_is_refused_at_once(name, scheme, value, fault):
    with pytest.raises(ValueError, match=f"{name} holds .*{fault}"):
        tiny_config(scheme, **{name: value})


def test_layers_at_other_places_than_they_were_built_for_are_not_saved(tmp_path):
    model = PosEncModel(tiny_config("rope+window", num_hidden_layers=4))
    model.layers = torch.nn.ModuleList([model.layers[0], model.layers[2]])
    model.config.num_hidden_layers = 2
    with pytest.raises(ValueError, match="Layer 1 was built as layer 2.*make one of the config that you want"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    deberta = PosEncModel(tiny_config("deberta", num_hidden_layers=4))
    deberta.layers = deberta.layers[:2]
    deberta.config.num_hidden_layers = 2
    with pytest.raises(ValueError, match="num_hidden_layers=2 isn't what this model was built with, 4.*make one of"):
        deberta.save_pretrained(tmp_path)
    rope = PosEncModel(tiny_config("rope", num_hidden_layers=4))
    rope.layers = rope.layers[:2]
    rope.config.num_hidden_layers = 2
    rope.save_pretrained(tmp_path)


def test_a_length_that_the_weights_have_is_not_changed_in_the_config_and_a_trained_length_stays(tmp_path):
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    for scheme, length, more in (("learned", 128, {}), ("rope", 16, {"rope_parameters": dynamic})):
        model = PosEncModel(tiny_config(scheme, **more))
        model.config.max_position_embeddings = length
        with pytest.raises(
            ValueError, match=f"config.max_position_embeddings={length} isn't what this model was built"
        ):
            model.save_pretrained(tmp_path)
    yarn = {"rope_type": "yarn", "factor": 2.0}  # which has the trained length from its parameters
    for more, length in (({}, 512), ({"rope_parameters": dynamic}, 512), ({"rope_parameters": yarn}, 16)):
        model = PosEncModel(tiny_config("rope", **more))
        model.config.max_position_embeddings = length
        model.save_pretrained(tmp_path)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_as_published(size):
    config = PosEncConfig.from_size(size, vocab_size=50, num_labels=5)
    sizes = {"tiny": (128, 2, 2), "mini": (256, 4, 4), "small": (512, 4, 8), "base": (768, 12, 12)}
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == sizes[size]
    assert config.intermediate_size == 4 * config.hidden_size
    assert (config.vocab_size, config.num_labels) == (50, 5)
    with pytest.raises(ValueError, match="size='large' is unknown. Choose one of tiny, mini, small, base"):
        PosEncConfig.from_size("large")


def test_checking_the_longest_table_allocates_nothing():
    # 2^24 x 131,072 float32 would be 8 TiB.
    tiny_config("learned", hidden_size=2**17, num_attention_heads=2**10, max_position_embeddings=2**24)


def test_a_scheme_argument_reaches_the_scheme():
    model = PosEncModel(tiny_config("learned", position_embedding_kwargs={"std": 0.5}))
    assert model.position.embedding.weight.std().item() == pytest.approx(0.5, rel=0.1)
    for scheme in ("sinusoidal", "lspe"):
        assert PosEncModel(tiny_config(scheme, position_embedding_kwargs={"rms": None})).position.scale == 1.0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hidden_size", 50, "hidden_size=50 isn't a multiple of num_attention_heads=4"),
        ("pad_token_id", 1000, "pad_token_id=1000 is outside the vocabulary"),
        ("position_embedding_type", "alibbi", "Did you mean 'alibi'"),
        ("position_embedding_type", "none", "'relu'} is no argument of 'none'.* It takes dropout"),
    ],
)
def test_a_config_broken_after_it_was_made_is_refused_by_the_model(name, value, message):
    config = tiny_config("lspe", position_embedding_kwargs={"activation": "relu"})
    setattr(config, name, value)
    with pytest.raises(ValueError, match=message):
        PosEncForSequenceClassification(config)


def test_either_map_of_labels_gives_the_other(tmp_path):
    for labels in ({"id2label": {0: "no", 1: "yes", 2: "so"}}, {"label2id": {"so": 2, "no": 0, "yes": 1}}):
        config = PosEncConfig(**labels)
        assert (config.num_labels, config.id2label) == (3, {0: "no", 1: "yes", 2: "so"})
        assert config.label2id == {"no": 0, "yes": 1, "so": 2}
    config.save_pretrained(tmp_path)
    assert PosEncConfig.from_pretrained(tmp_path).label2id == config.label2id
    other = PosEncConfig.from_pretrained(tmp_path, id2label={0: "a", 1: "b"})
    assert (other.label2id, other.num_labels) == ({"a": 0, "b": 1}, 2)
    for folder in (tmp_path, written(tmp_path / "unnamed", id2label={"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"})):
        named = PosEncConfig.from_pretrained(folder, label2id={"x": 0, "z": 2, "y": 1})
        assert (named.id2label, named.label2id) == ({0: "x", 1: "y", 2: "z"}, {"x": 0, "z": 2, "y": 1})
    assert PosEncConfig.from_pretrained(tmp_path, num_labels=5).num_labels == 5
    assert PosEncConfig.from_pretrained(tmp_path, num_labels=3).id2label == config.id2label
    config.num_labels = 7
    assert len(config.label2id) == 7


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"label2id": {"x": 1, "y": 2}}, "id2label={1: 'x', 2: 'y'} must give labels the numbers 0, 1, 2, ... without"),
        ({"id2label": {0: "x", 2: "y"}}, "id2label={0: 'x', 2: 'y'} must give labels the numbers 0, 1, 2, ... without"),
        ({"label2id": {"x": "a"}}, "label2id={'x': 'a'} or id2label=None must give labels the numbers 0, 1, 2, ..."),
    ],
)
def test_labels_without_numbers_from_0_are_refused(labels, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        PosEncConfig(**labels)


def test_labels_that_are_named_after_the_config_was_made_are_saved_and_loaded(tmp_path):
    names = {0: "neg", 1: "neu", 2: "pos"}
    numbers = {name: number for number, name in names.items()}
    changes = [
        lambda config: setattr(config, "id2label", names),
        lambda config: setattr(config, "label2id", numbers),
        lambda config: setattr(config, "label2id", {name: str(number) for name, number in numbers.items()}),
        lambda config: config.update({"id2label": {str(number): name for number, name in names.items()}}),
    ]
    for number, change in enumerate(changes):
        config = PosEncConfig(num_labels=np.int64(3))
        change(config)
        config.save_pretrained(tmp_path / str(number))
        loaded = PosEncConfig.from_pretrained(tmp_path / str(number))
        assert (loaded.id2label, loaded.label2id, loaded.num_labels) == (names, numbers, 3)
    renamed = PosEncConfig.from_dict({**loaded.to_dict(), "id2label": {0: "a", 1: "b", 2: "c"}})
    assert renamed.label2id == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize(
    "name", ["to_dict", "save_pretrained", "attribute_map", "_auto_class", "__class__", "__dict__"]
)
def test_a_file_replaces_no_method_and_no_private_field(tmp_path, name):
    config = PosEncConfig.from_pretrained(written(tmp_path, **{name: 5}))
    config.save_pretrained(tmp_path / "again")
    assert name not in json.loads((tmp_path / "again" / "config.json").read_text())


@pytest.mark.parametrize(
    ("scheme", "kwargs", "rope", "reset"),
    [
        ("", {"window": {"sliding_window": 6}}, ..., "interleaved=True"),
        ("", {"rope": {"interleaved": True}, "window": {"global_attn_every_n_layers": 2}}, ..., "sliding_window=4"),
        ("", {"rope": {"interleaved": True}, "window": {"sliding_window": 6}}, {"rope_type": "default"}, ""),
        ("", None, ..., ""),
        ("rope", ..., ..., "interleaved=True, rope_parameters={'rope_theta': 500.0}"),
        ("rope", {"interleaved": True}, ..., "rope_parameters={'rope_theta': 500.0}"),
        ("rope", {"interleaved": False}, {"rope_theta": 500.0}, ""),
        ("learned+window", ..., ..., "sliding_window=4"),
        ("alibi", ..., ..., ""),
    ],
)
def test_arguments_of_a_checkpoint_that_others_replace_are_said(scheme, kwargs, rope, reset, tmp_path, caplog):
    trained = {"rope": {"interleaved": True}, "window": {"sliding_window": 4}}
    theta = {"rope_theta": 500.0}
    encoder("rope+window", position_embedding_kwargs=trained, rope_parameters=theta).save_pretrained(tmp_path)
    fields = {"position_embedding_type": scheme or ..., "position_embedding_kwargs": kwargs, "rope_parameters": rope}
    PosEncModel.from_pretrained(tmp_path, **{name: value for name, value in fields.items() if value is not ...})
    said = [line.split("get their defaults: ")[1] for line in caplog.messages if "get their defaults" in line]
    assert said == ([f"{reset}. Give them too."] if reset else [])


@pytest.mark.parametrize("scheme", BUILTIN)
def test_only_arguments_that_change_are_said_to_be_replaced(scheme, tmp_path, caplog):
    """The model's sizes decide some defaults."""
    encoder(scheme).save_pretrained(tmp_path)
    trained = PosEncConfig.from_pretrained(tmp_path).position_embedding_kwargs
    gets = PosEncModel.from_pretrained(tmp_path, position_embedding_kwargs={}).config.position_embedding_kwargs
    said = [line for line in caplog.messages if "get their defaults" in line]
    assert bool(said) == (gets != trained) == (scheme == "window")
