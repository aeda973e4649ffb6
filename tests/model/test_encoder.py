"""The encoder, whatever the scheme: the same tokens at the same positions give the same numbers."""

import contextlib
import copy
import itertools
import logging

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from transformers import DataCollatorWithFlattening

import hf_posenc
from hf_posenc import SCHEMES, AddedPosition, PosEncConfig, PosEncForSequenceClassification, PosEncModel
from tests.support.common import BUILTIN, BY_HOOK, COMBINED, EVERY_HOOK, encoder, padded, perturb, tiny_config, tokens
from tests.support.references import encode

LENGTHS = [9, 1, 4, 6]
SEQUENCES = [tokens(length, seed=length) for length in LENGTHS]
HEADS = {
    "SequenceClassification": {"labels": torch.tensor([1, 0, 2, 1])},
    "TokenClassification": {},
    "MaskedLM": {},
    "QuestionAnswering": {"start_positions": torch.tensor([1, 0, 2, 0]), "end_positions": torch.tensor([3, 0, 3, 99])},
}

OF_TOKENS = ("TokenClassification", "MaskedLM")


@pytest.mark.parametrize("unpad", [True, False])
def test_one_row_of_positions_serves_all_rows(unpad):
    model, ids, positions = encoder("learned", unpad_inputs=unpad), tokens(3, 5), torch.tensor([4, 0, 7, 9, 2])
    expected = model(ids, position_ids=positions.expand(3, 5)).last_hidden_state
    for row in (positions, positions[None]):
        torch.testing.assert_close(model(ids, position_ids=row).last_hidden_state, expected)


def targets(name: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"labels": ids % 3} if name in OF_TOKENS else HEADS[name]


def head(name: str, scheme: str, **overrides):
    config = tiny_config(scheme, num_labels=3, **overrides)
    torch.manual_seed(0)
    return perturb(getattr(hf_posenc, f"PosEncFor{name}")(config)).eval()


def alone(model: PosEncModel, sequence: torch.Tensor) -> torch.Tensor:
    return model(sequence[None]).last_hidden_state[0]


GATED = {"mlp_gated": True}
BARE = {"attention_bias": False, "mlp_bias": False}
EUROBERT = {**GATED, **BARE, "norm_position": "pre_only", "norm_type": "rms_norm"}
ESM = {"norm_position": "pre_only", "token_dropout": int(SEQUENCES[0][3])}
ARGUMENTS = [
    ("sinusoidal", {"learned_scale": True}),
    ("fourier", {"num_frequencies": 5, "intermediate_size": 9, "gamma": 2.0, "reference_length": 7}),
    ("alibi", {"learned": False}),
    ("alibi", {"learned": False, "directional": False}),
    ("alibi", {"directional": False, "per_layer": True}),
    ("alibi", {"per_layer": True}),
    ("t5", {"per_layer": True}),
    ("t5", {"num_buckets": 8, "max_distance": 20}),
    ("toeplitz", {"max_distance": 2, "per_layer": True}),
    ("cable", {"directional": False}),
    ("pope", {"theta": 100.0}),
    ("window", {"sliding_window": 2, "global_attn_every_n_layers": 2}),
    ("kerple", {"kernel": "power"}),
    ("kerple", {"directional": False}),
    ("fire", {"threshold": 4.0}),
    ("tupe", {"reset_first": False}),
    ("deberta", {"terms": "c2p"}),
    ("deberta", {"terms": "p2c"}),
    ("deberta", {"max_distance": 3}),
    ("deberta", {"max_distance": 9, "position_buckets": 4, "norm_eps": 1e-3}),
]
VARIANTS = [
    ("rope", GATED),
    ("rope", {**GATED, **BARE}),
    ("alibi", BARE),
    ("learned+sinusoidal+alibi+kerple", {}),
    *((scheme, {"position_embedding_kwargs": kwargs}) for scheme, kwargs in ARGUMENTS),
    ("rope", {"rope_parameters": {"local_rope_theta": 50.0, "global_attn_every_n_layers": 2}}),
    (
        "rope+window",
        {
            "norm_position": "pre_but_first",
            "position_embedding_kwargs": {"window": {"sliding_window": 1}},
            "rope_parameters": {"local_rope_theta": 50.0, "global_attn_every_n_layers": 3},
        },
    ),
]


@pytest.mark.parametrize(
    ("scheme", "fields"),
    [
        *((scheme, {}) for scheme in (*BUILTIN, *COMBINED)),
        *((scheme, fields) for scheme in BY_HOOK for fields in ({"norm_position": "post"}, ESM, EUROBERT)),
        *VARIANTS,
    ],
)
def test_encoder_and_its_gradients_equal_its_float64_twin(scheme, fields):
    model = encoder(scheme, **fields)
    target = torch.randn(len(SEQUENCES[0]), 32)
    results = []
    for hidden in (encode(model, SEQUENCES[0]), alone(model, SEQUENCES[0])):
        model.zero_grad(set_to_none=True)
        hidden.mul(target).sum().backward()
        results.append((hidden, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (expected, expected_gradients), (got, gradients) = results
    torch.testing.assert_close(got.double(), expected, atol=2e-5, rtol=1e-5)
    assert set(gradients) == set(expected_gradients)
    assert any(name.startswith("position.") for name in gradients) == any(True for _ in model.position.parameters())
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-3, rtol=1e-3)
    ids, mask = padded(SEQUENCES, "left")
    hidden = model(ids, attention_mask=mask).last_hidden_state
    for row, sequence in enumerate(SEQUENCES):
        torch.testing.assert_close(hidden[row][mask[row] == 1], alone(model, sequence), atol=1e-5, rtol=1e-5)
    assert (hidden[mask == 0] == 0).all()


@pytest.mark.parametrize(
    ("fields", "biased"),
    [
        ({}, {"query", "key", "value", "dense", "intermediate", "output"}),
        ({"attention_bias": False}, {"intermediate", "output"}),
        ({"mlp_bias": False}, {"query", "key", "value", "dense"}),
        (GATED, {"query", "key", "value", "dense", "output"}),  # as GTE
        ({**GATED, **BARE}, set()),  # as NomicBERT
    ],
)
def test_the_config_says_which_linear_layers_there_are_and_which_have_biases(fields, biased):
    layer = encoder("rope", **fields).layers[0]
    linear = {name.split(".")[-1]: part for name, part in layer.named_modules() if isinstance(part, torch.nn.Linear)}
    gate = {"up"} if fields.get("mlp_gated") else set()
    assert linear.keys() == {"query", "key", "value", "dense", "intermediate", "output"} | gate
    assert {name for name, part in linear.items() if part.bias is not None} == biased
    assert all(norm.bias is not None for norm in (layer.attention_norm, layer.output_norm))


@pytest.mark.parametrize("scheme", BY_HOOK)
def test_float64_model_equals_its_twin_to_float64_precision(scheme):
    model = encoder(scheme).double()
    difference = (alone(model, SEQUENCES[0]) - encode(model, SEQUENCES[0])).abs().max()
    # Sines and angles are float32 by design, so only schemes without them reach float64.
    assert difference < (1e-12 if scheme in ("none", "learned") else 1e-5)


def pack(sequences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    ids = torch.cat(sequences)[None]
    lengths = [len(sequence) for sequence in sequences]
    position_ids = torch.cat([torch.arange(length) for length in lengths])[None]
    seq_idx = torch.cat([torch.full((length,), i, dtype=torch.int32) for i, length in enumerate(lengths)])[None]
    borders = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    return ids, position_ids, seq_idx, borders


@pytest.mark.parametrize("scheme", ["rope", "t5"])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *(("SequenceClassification", {"classifier_pooling": pooling}) for pooling in ("mean", "cls", "max")),
        *((name, {}) for name in ("TokenClassification", "MaskedLM")),
        *(("QuestionAnswering", {"unpad_inputs": unpad}) for unpad in (True, False)),
        *(("MaskedLM", {**ESM, "unpad_inputs": unpad}) for unpad in (True, False)),
        ("MaskedLM", EUROBERT),
    ],
)
def test_packed_rows_give_the_logits_and_the_loss_of_separate_sequences(name, fields, scheme):
    model = head(name, scheme, **fields)
    ids, position_ids, _, _ = pack(SEQUENCES)
    batch_ids, mask = padded(SEQUENCES)
    packed = model(ids, position_ids=position_ids, **targets(name, ids))
    separate = model(batch_ids, attention_mask=mask, **targets(name, batch_ids))
    for key, expected in separate.items():
        expected = expected[mask == 1][None] if name in OF_TOKENS and key == "logits" else expected
        torch.testing.assert_close(packed[key], expected, atol=1e-4 if key == "logits" else 1e-5, rtol=1e-5)


def test_multiple_choice_equals_each_choice_alone_and_refuses_packed_rows():
    model = head("MultipleChoice", "rope")
    ids, mask = padded(SEQUENCES)
    out = model(ids.view(2, 2, -1), attention_mask=mask.view(2, 2, -1), labels=torch.tensor([0, 1]))
    single = [model(sequence[None, None]).logits for sequence in SEQUENCES]
    torch.testing.assert_close(out.logits, torch.cat(single).view(2, 2), atol=1e-5, rtol=1e-5)
    expected = functional.cross_entropy(out.logits, torch.tensor([0, 1]))
    torch.testing.assert_close(out.loss, expected)
    packed_ids, position_ids, _, _ = pack(SEQUENCES)
    with pytest.raises(ValueError, match=r"can't take packed rows: give each choice a row"):
        model(packed_ids[None], position_ids=position_ids[None])


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        *((scheme, "SequenceClassification") for scheme in EVERY_HOOK if scheme != "t5"),
        *(("t5", name) for name in HEADS),
    ],
)
def test_padding_free_equals_padded_in_logits_hidden_states_loss_and_gradients(scheme, name):
    ids, mask = padded(SEQUENCES, extra=1)
    results = []
    for unpad in (True, False):
        model = head(name, scheme, unpad_inputs=unpad).train()
        out = model(ids, attention_mask=mask, output_hidden_states=True, **targets(name, ids))
        out.loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        results.append((out, gradients))
    (free, free_gradients), (full, full_gradients) = results
    assert len(free.hidden_states) == 3
    torch.testing.assert_close(free.to_tuple(), full.to_tuple(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(free_gradients, full_gradients, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("scheme", BY_HOOK)
def test_a_row_of_padding_alone_is_finite_and_changes_no_other(scheme, pooling, unpad):
    model = head("SequenceClassification", scheme, classifier_pooling=pooling, unpad_inputs=unpad).train()
    ids, mask = padded(SEQUENCES)
    expected = model(ids, attention_mask=mask).logits
    mask_with = torch.cat((mask[:1], torch.zeros_like(mask[:1]), mask[1:]))
    ids_with = torch.cat((ids[:1], ids[:1], ids[1:]))
    out = model(ids_with, attention_mask=mask_with, labels=torch.tensor([0, 1, 2, 0, 1]))
    assert torch.isfinite(out.logits).all()
    torch.testing.assert_close(out.logits[[0, 2, 3, 4]], expected, atol=1e-5, rtol=1e-5)
    out.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    only = model(ids[:2], attention_mask=torch.zeros_like(mask[:2]), labels=torch.tensor([0, 1]))
    assert torch.isfinite(only.logits).all()
    torch.testing.assert_close(only.logits, out.logits[[1, 1]], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("scheme", BY_HOOK)
def test_a_number_at_padding_that_is_not_finite_is_never_read(scheme):
    """The padding token's row is NaN in one batch, the given embeddings are infinite at padding in the other."""
    ids, mask = padded(SEQUENCES, "left")
    results = []
    for unpad in (True, False):
        model = head("SequenceClassification", scheme, unpad_inputs=unpad).train()
        table = model.model.embeddings.word_embeddings.weight
        embeds = table.detach()[ids].masked_fill(mask.unsqueeze(-1) == 0, float("inf"))
        with torch.no_grad():
            table[0] = float("nan")
        outs = []
        for implementation, inputs in (("eager", {"input_ids": ids}), ("sdpa", {"inputs_embeds": embeds})):
            model.config._attn_implementation = implementation
            outs.append(model(**inputs, attention_mask=mask, **HEADS["SequenceClassification"]))
        sum(out.loss for out in outs).backward()
        results.append([*(out.logits for out in outs), *(p.grad for p in model.parameters() if p.grad is not None)])
    for free, full in zip(*results, strict=True):
        assert torch.isfinite(free).all()
        torch.testing.assert_close(full, free, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scheme", ["rope", "t5"])
def test_pooling_equals_pooling_by_hand(scheme):
    ids, mask = padded(SEQUENCES, "left")
    for unpad, pooling in itertools.product((True, False), ("mean", "cls", "max")):
        model = head("SequenceClassification", scheme, classifier_pooling=pooling, unpad_inputs=unpad)
        rows = [alone(model.model, sequence) for sequence in SEQUENCES]
        by_hand = {"mean": lambda x: x.mean(0), "cls": lambda x: x[0], "max": lambda x: x.amax(0)}[pooling]
        expected = model.classifier(torch.stack([by_hand(row) for row in rows]))
        torch.testing.assert_close(model(ids, attention_mask=mask).logits, expected, atol=1e-5, rtol=1e-5)


def small_encoder(scheme: str, **overrides) -> PosEncModel:
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "num_hidden_layers": 1}
    return encoder(scheme, **sizes, **overrides).double()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", EVERY_HOOK)
def test_forward_mode_and_second_derivatives_agree_in_eager_attention(scheme):
    mask = padded(SEQUENCES[1:])[1]
    x, direction = torch.randn(2, *mask.shape, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    model = small_encoder(scheme, attn_implementation="eager")

    def encode(x):
        return model(inputs_embeds=x, attention_mask=mask).last_hidden_state

    def energy(x):
        return encode(x).square().sum()

    leaf, weights = x.clone().requires_grad_(), torch.zeros_like(x).requires_grad_()
    backward = torch.autograd.grad((encode(leaf) * weights).sum(), leaf, create_graph=True)[0]
    expected = torch.autograd.grad((backward * direction).sum(), weights)[0]
    torch.testing.assert_close(torch.func.jvp(encode, (x,), (direction,))[1], expected)
    with forward_ad.dual_level():
        dual = encode(forward_ad.make_dual(x, direction))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, expected)
    leaf = x.clone().requires_grad_()
    gradient = torch.autograd.grad(energy(leaf), leaf, create_graph=True)[0]
    (gradient * direction).sum().backward()
    product = torch.func.jvp(torch.func.grad(energy), (x,), (direction,))[1]  # of the Hessian and the direction
    torch.testing.assert_close(product, leaf.grad)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", EVERY_HOOK)
def test_vmap_over_sequences_equals_a_loop(scheme):
    ids, mask = padded(SEQUENCES[1:], "left")
    model = small_encoder(scheme)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def energy(weights, ids, mask):
        out = torch.func.functional_call(model, weights, ids[None], {"attention_mask": mask[None]})
        return out.last_hidden_state.square().sum()

    gradients, values = torch.func.vmap(torch.func.grad_and_value(energy), (None, 0, 0))(weights, ids, mask)
    for row, sequence in enumerate(SEQUENCES[1:]):
        model.zero_grad()
        value = alone(model, sequence).square().sum()
        value.backward()
        torch.testing.assert_close(values[row], value.detach())
        for name, parameter in model.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(gradients[name][row], expected, atol=1e-6, rtol=1e-6)

    # The weights need gradients here, and a bias with them.
    embeds = torch.randn(2, 5, 8, dtype=torch.float64)
    got = torch.func.vmap(lambda row: model(inputs_embeds=row[None]).last_hidden_state[0])(embeds)
    torch.testing.assert_close(got, model(inputs_embeds=embeds).last_hidden_state)


@pytest.mark.parametrize("scheme", BY_HOOK)
def test_inputs_embeds_equal_input_ids(scheme):
    model = encoder(scheme)
    ids, mask = padded(SEQUENCES)
    embeds = model.get_input_embeddings()(ids)
    expected = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(model(inputs_embeds=embeds, attention_mask=mask).last_hidden_state, expected)


def test_token_types_count_one_row_serves_all_and_they_may_be_absent():
    ids, mask = padded(SEQUENCES)
    model, types = encoder("rope"), (torch.arange(9) > 3).long()[None]
    zero = model(ids, attention_mask=mask, token_type_ids=torch.zeros_like(types)).last_hidden_state
    torch.testing.assert_close(model(ids, attention_mask=mask).last_hidden_state, zero)
    typed = model(ids, attention_mask=mask, token_type_ids=types).last_hidden_state
    assert (typed - zero).abs().max() > 1e-2
    each = model(ids, attention_mask=mask, token_type_ids=types.expand(4, 9)).last_hidden_state
    torch.testing.assert_close(typed, each)
    for other in (torch.zeros(4, 12), torch.zeros(1, 12), torch.zeros(4, 1)):
        with pytest.raises(
            ValueError, match=r"token_type_ids must be a tensor of shape \(4, 9\), not .* Give \(B, S\)"
        ):
            model(ids, attention_mask=mask, token_type_ids=other)
    without = encoder("rope", type_vocab_size=0)
    torch.testing.assert_close(without(ids, token_type_ids=types)[0], without(ids)[0])


def test_resized_embeddings_keep_old_tokens_and_stay_tied():
    model = head("MaskedLM", "rope", embedding_size=20)
    before = model(SEQUENCES[0][None]).logits
    model.resize_token_embeddings(120)
    after = model(SEQUENCES[0][None]).logits
    assert after.shape[-1] == 120
    assert model.config.vocab_size == 120
    assert model.lm_head.decoder.weight is model.model.embeddings.word_embeddings.weight
    torch.testing.assert_close(after[..., :101], before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [*HEADS, "MultipleChoice"])
def test_a_padding_token_outside_the_vocabulary_is_refused_until_the_embeddings_are_resized(name, tmp_path):
    """The Trainer writes the tokenizer's into the config of a model that was built before."""
    with pytest.raises(ValueError, match="pad_token_id=101 is outside the vocabulary of 101 tokens"):
        PosEncConfig(vocab_size=101, pad_token_id=101)
    model, ids = head(name, "rope", pad_token_id=None), tokens(4, 6)
    ids = ids.unsqueeze(1) if name == "MultipleChoice" else ids
    model.config.pad_token_id = 101
    for part in (model, model.base_model):
        with pytest.raises(ValueError, match=r"pad_token_id=101 .*: model.resize_token_embeddings\(len\(tokenizer\)\)"):
            part(ids)
    model.resize_token_embeddings(102)
    expected = model(ids)[0]
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path)(ids)[0], expected)


def test_scaled_embeddings_multiply_tokens_alone():
    model = encoder("sinusoidal", scale_embeddings=True, type_vocab_size=0)
    other = encoder("sinusoidal", type_vocab_size=0)
    assert model.position.scale == pytest.approx(other.position.scale * 32**0.5)
    other.position.scale = model.position.scale
    with torch.no_grad():
        other.embeddings.word_embeddings.weight *= 32**0.5
    torch.testing.assert_close(model(SEQUENCES[0][None])[0], other(SEQUENCES[0][None])[0], atol=1e-5, rtol=1e-5)


def test_token_dropout_is_finite_of_masks_alone_and_leaves_embeddings_that_are_given():
    model = encoder("none", **ESM)
    masks = torch.full((1, 3), ESM["token_dropout"])
    hidden = model(torch.cat((masks, SEQUENCES[0][None, :3]))).last_hidden_state
    assert torch.isfinite(hidden).all()
    torch.testing.assert_close(hidden[:1], model(inputs_embeds=torch.zeros(1, 3, 32)).last_hidden_state)
    words = model.embeddings.word_embeddings(SEQUENCES[0][None, :3])
    torch.testing.assert_close(hidden[1:], model(inputs_embeds=0.88 * words).last_hidden_state)


def test_question_answering_ignores_borders_that_fall_on_padding():
    model = head("QuestionAnswering", "rope")
    ids, mask = padded(SEQUENCES)
    inside, outside = torch.tensor([1, 0, 2, 0]), torch.tensor([1, 5, 2, 0])  # the second row has one token
    batch = model(ids, attention_mask=mask, start_positions=outside, end_positions=inside).loss
    rows = [0, 2, 3]
    start = functional.cross_entropy(model(ids, attention_mask=mask).start_logits[rows], inside[rows])
    end = functional.cross_entropy(model(ids, attention_mask=mask).end_logits, inside)
    torch.testing.assert_close(batch, (start + end) / 2)


def test_the_trainer_divides_the_loss_of_question_answering_itself():
    assert hf_posenc.PosEncForQuestionAnswering.accepts_loss_kwargs is False
    assert hf_posenc.PosEncForMaskedLM.accepts_loss_kwargs is True


@pytest.mark.parametrize("field", ["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"])
def test_every_dropout_acts_in_training_and_only_there(field):
    model = head("SequenceClassification", "rope", **{field: 0.5})
    ids = SEQUENCES[0][None]
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)
    if field == "hidden_dropout_prob":
        embedded = model.model(ids, output_hidden_states=True).hidden_states[0]
        assert 0.3 < (embedded == 0).float().mean() < 0.7
        model.model.embeddings.dropout.p = 0.0
        assert not torch.equal(model.model(ids)[0], model.model(ids)[0])


def test_a_scheme_that_does_not_say_how_it_starts_starts_like_the_rest(tmp_path):
    fresh = PosEncModel(tiny_config("test_layer_distance", initializer_range=0.05))
    assert fresh.position.tables[0].weight.std().item() == pytest.approx(0.05, rel=0.3)
    encoder("rope").save_pretrained(tmp_path)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        loaded = PosEncModel.from_pretrained(tmp_path, position_embedding_type="test_layer_distance")
    finally:
        torch.use_deterministic_algorithms(False)
    assert loaded.position.tables[0].weight.std().item() == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize(
    ("name", "loss_of"),
    [
        ("regression", functional.mse_loss),
        ("single_label_classification", functional.cross_entropy),
        ("multi_label_classification", functional.binary_cross_entropy_with_logits),
        *((name, functional.cross_entropy) for name in OF_TOKENS),
    ],
)
def test_losses_equal_torch_and_scale_with_num_items_in_batch(name, loss_of):
    ids, mask = padded(SEQUENCES)
    if name in OF_TOKENS:
        model, labels = head(name, "rope"), ids % 3
        counted = labels.masked_fill(mask == 0, -100)
    else:
        model = head("SequenceClassification", "rope", problem_type=name)
        labels = torch.tensor([0, 2, 1, 2]) if name.startswith("single") else torch.eye(4, 3)
        counted = labels
    out = model(ids, attention_mask=mask, labels=labels)
    torch.testing.assert_close(out.loss, loss_of(out.logits.movedim(-1, 1), counted))
    # Two halves, each divided by the count of the whole, as the Trainer accumulates gradients.
    count = (counted != -100).sum()
    halves = [
        model(ids[rows], attention_mask=mask[rows], labels=labels[rows], num_items_in_batch=count).loss
        for rows in (slice(0, 2), slice(2, 4))
    ]
    torch.testing.assert_close(sum(halves), out.loss)


def test_a_step_in_which_no_token_has_a_label_has_a_loss_of_zero():
    ids = tokens(2, 6)
    for count in (None, 0, torch.tensor(0)):
        assert head("MaskedLM", "rope")(ids, labels=torch.full_like(ids, -100), num_items_in_batch=count).loss == 0


@pytest.mark.parametrize("wrap", [lambda words: words, torch.nn.Sequential])
def test_another_padding_token_than_the_model_was_built_with_leaves_no_word_untrained(wrap):
    model, ids = head("SequenceClassification", "rope", pad_token_id=0), torch.tensor([[0, 5, 6, 1]])
    model.config.pad_token_id = 1  # as the Trainer sets it
    model.base_model.embeddings.word_embeddings = wrap(model.base_model.embeddings.word_embeddings)  # as PEFT does
    model(ids, attention_mask=torch.tensor([[1, 1, 1, 0]]), labels=torch.tensor([1])).loss.backward()
    (words,) = model.base_model.embeddings.word_embeddings.parameters()
    trained = words.grad.norm(dim=1).nonzero().flatten()
    assert trained.tolist() == [0, 5, 6]


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_regression_answers_in_the_units_of_the_data_and_its_loss_is_in_standard_units(outputs):
    ids, mask = padded(SEQUENCES)
    plain = perturb(PosEncForSequenceClassification(tiny_config(num_labels=outputs, problem_type="regression"))).eval()
    model = copy.deepcopy(plain)
    model.config.label_mean, model.config.label_scale = 2005.0, 10
    standard, years = plain(ids, attention_mask=mask).logits, model(ids, attention_mask=mask).logits
    torch.testing.assert_close(years, standard * 10 + 2005)
    labels = torch.randn(4, outputs)
    loss = model(ids, attention_mask=mask, labels=labels * 10 + 2005).loss
    torch.testing.assert_close(loss, plain(ids, attention_mask=mask, labels=labels).loss, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_regression_in_bfloat16_does_not_round_to_bfloat16(autocast):
    ids, mask = padded(SEQUENCES)
    config = tiny_config(num_labels=1, problem_type="regression", label_mean=2005.0, label_scale=10.0)
    model = perturb(PosEncForSequenceClassification(config)).eval()
    expected = model(ids, attention_mask=mask).logits
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = (model if autocast else model.bfloat16())(ids, attention_mask=mask).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, atol=0.5, rtol=0)


def test_with_one_seed_everything_but_the_scheme_starts_equal():
    states = {}
    for scheme in (*BUILTIN, *COMBINED):
        torch.manual_seed(3)
        model = PosEncForSequenceClassification(tiny_config(scheme))
        states[scheme] = ({k: v for k, v in model.state_dict().items() if ".position." not in k}, torch.rand(1))
    reference, drawn = states["none"]
    for scheme, (state, after) in states.items():
        assert state.keys() == reference.keys()
        assert all(torch.equal(state[key], reference[key]) for key in state), scheme
        assert torch.equal(after, drawn), "the generator stands elsewhere after building " + scheme


@pytest.mark.parametrize("scheme", [name for name in BUILTIN if issubclass(SCHEMES[name], AddedPosition)])
def test_added_schemes_start_with_the_scale_of_the_tokens(scheme):
    model = PosEncModel(tiny_config(scheme, hidden_size=128, max_position_embeddings=512))
    rms = model.position.encodings(torch.arange(512)).square().mean().sqrt()
    assert rms.item() == pytest.approx(0.02, rel=0.05)


PAST_THE_END = r"position_embedding_type='learned' has positions 0 to 63, the input has 0 to 69\. Truncate to 64 tokens"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": tokens(2, 0)}, r"The input of shape \(2, 0\) holds no token"),
        ({}, "Give exactly one of input_ids"),
        ({"input_ids": tokens(5)}, r"input_ids has shape \(5,\); give \(B, S\)"),
        ({"input_ids": [[5, 6]]}, r"input_ids is a list; give \(B, S\)\. .*return_tensors='pt'"),
        ({"inputs_embeds": torch.zeros(5, 32)}, r"inputs_embeds has shape \(5, 32\); give \(B, S, 32\)"),
        ({"inputs_embeds": torch.zeros(1, 5, 31)}, r"inputs_embeds has shape \(1, 5, 31\); give \(B, S, 32\)"),
        ({"input_ids": tokens(2, 5), "attention_mask": torch.ones(2, 4)}, r"attention_mask must be .*, not \(2, 4\)"),
        (
            {"input_ids": tokens(1, 2), "attention_mask": torch.tensor([[0.0, -1e9]])},
            "attention_mask holds -1000000000.0. Give one number per token.* 1 for tokens, 0 for padding",
        ),
        (
            {"input_ids": tokens(2, 5), "position_ids": torch.ones(3, 5).long()},
            r"position_ids must be a tensor of shape \(2, 5\), not \(3, 5\)\. Give \(B, S\)",
        ),
        (
            {"input_ids": tokens(2, 5), "position_ids": torch.arange(5) / 2},
            r"position_ids of torch\.float32 .*whole numbers.*'rope_type': 'linear'",
        ),
        ({"input_ids": tokens(2, 5), "seq_idx": torch.ones(2, 4)}, r"seq_idx must be .*, not \(2, 4\)"),
        ({"input_ids": tokens(1, 5), "cu_seq_lens_q": torch.tensor([0, 3])}, r"cu_seq_lens_q=\[0, 3\] doesn't cut"),
        *(
            (
                {"input_ids": tokens(2, 5), name: [[1] * 5] * 2},
                rf"{name} must be a tensor of shape \(2, 5\), not a list",
            )
            for name in ("attention_mask", "position_ids", "seq_idx")
        ),
        ({"input_ids": tokens(2, 70)}, PAST_THE_END),
        ({"input_ids": tokens(1, 3), "position_ids": torch.tensor([[0, 1, 69]])}, PAST_THE_END),
        (
            {"input_ids": tokens(1, 3), "position_ids": torch.tensor([[-1, 0, 1]])},
            r"the input has -1 to .* give position_ids that start at 0",
        ),
    ],
)
def test_input_that_does_not_fit_is_named(arguments, message):
    """Or positions past a table's end, before a kernel runs."""
    with pytest.raises(ValueError, match=message):
        encoder("learned")(**arguments)


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("SequenceClassification", [0, 1, 2], r"labels must be a tensor of shape \(2,\), not \(3,\)"),
        (
            "SequenceClassification",
            [[0, 1, 1]] * 2,
            r"of shape \(2,\), not \(2, 3\).*0 or 1 of each class it is 'multi_l",
        ),
        ("TokenClassification", [[0] * 4] * 2, r"labels must be a tensor of shape \(2, 5\), not \(2, 4\)"),
        ("MultipleChoice", [0, 1], r"takes input_ids \(B, C, S\)"),
    ],
)
def test_labels_and_choices_that_do_not_fit_are_named(name, labels, message):
    model = head(name, "rope")
    with pytest.raises(ValueError, match=message):
        model(tokens(2, 5), labels=torch.tensor(labels))
    assert model.config.problem_type is None


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_labels_in_another_order_of_axes_are_refused(problem):
    """They have as many numbers as there are logits, but of other sequences."""
    model, message = head("SequenceClassification", "rope", problem_type=problem), r"of shape \(4, 3\), not"
    for shape in ((3, 4), (12,), (1, 4, 3)):
        with pytest.raises(ValueError, match=message):
            model(tokens(4, 5), labels=torch.ones(shape))


@pytest.mark.parametrize("name", [*HEADS, "MultipleChoice"])
def test_real_numbers_are_never_cut_to_the_numbers_of_classes(name):
    model, ids = head(name, "rope", problem_type="single_label_classification"), tokens(4, 6)
    ids = ids.unsqueeze(1) if name == "MultipleChoice" else ids
    wanted = targets(name, ids) if name in HEADS else {"labels": torch.zeros(4).long()}
    model(ids, **wanted)
    for key in wanted:
        real = {**wanted, key: wanted[key] + 0.25}
        with pytest.raises(ValueError, match="Labels of torch.float32 can't .* Give whole .*problem_type='regression'"):
            model(ids, **real)


@pytest.mark.parametrize("name", ["SequenceClassification", "TokenClassification"])
def test_a_loss_that_is_0_whatever_the_weights_is_said(name, caplog):
    logging.Logger.warning_once.cache_clear()
    model, ids = getattr(hf_posenc, f"PosEncFor{name}")(tiny_config(num_labels=1)), tokens(4, 6)
    model.config.problem_type = "single_label_classification"
    assert model(ids).logits.shape[-1] == 1
    assert caplog.messages == []
    labels = torch.zeros(ids.shape if name in OF_TOKENS else 4).long()
    assert [float(model(ids, labels=labels).loss) for _ in range(2)] == [0, 0]
    (line,) = caplog.messages
    assert line.startswith("With one class the cross-entropy is always 0, so nothing is learned. Set num_labels to")


@pytest.mark.parametrize(
    ("labels", "outputs", "problem"),
    [
        *((labels, 3, "single_label_classification") for labels in (torch.arange(4) % 3, torch.ones(4, 1).long())),
        (torch.ones(4, 3), 3, "multi_label_classification"),
        *((labels, 1, "regression") for labels in (torch.rand(4), torch.rand(4, 1), torch.rand(1, 4))),
        *((labels, 3, None) for labels in (torch.rand(4), torch.rand(1, 12), torch.rand(12), torch.rand(4, 2))),
        *((labels, 1, None) for labels in (torch.rand(5), torch.rand(4, 2))),
    ],
)
def test_labels_decide_the_problem_type_and_a_refused_batch_decides_nothing(labels, outputs, problem):
    model = PosEncForSequenceClassification(tiny_config(num_labels=outputs))
    refused = pytest.raises(ValueError, match=r"Labels of torch.float32 can't|labels must be .* of shape \(4,")
    with contextlib.nullcontext() if problem else refused:
        model(tokens(4, 6), labels=labels)
    assert model.config.problem_type == problem


@pytest.mark.parametrize("name", [None, *HEADS, "MultipleChoice"])
def test_an_argument_that_would_be_ignored_is_refused(name):
    """As those of prefix tuning, cross-attention and decoders are; and a misspelt one."""
    model, ids = head(name, "rope") if name else encoder("rope"), tokens(2, 5)
    ids = ids.unsqueeze(1) if name == "MultipleChoice" else ids
    nothing = {"head_mask": None, "past_key_values": None, "use_cache": False, "is_causal": False}
    expected = model(ids)[0]
    assert torch.equal(
        model(ids, **nothing, num_items_in_batch=7, output_attentions=False, return_dict=False)[0], expected
    )
    for argument in (
        "past_key_values",
        "encoder_hidden_states",
        "encoder_attention_mask",
        "head_mask",
        "atention_mask",
    ):
        with pytest.raises(ValueError, match=f"PosEnc.* takes no '{argument}' and would ignore it. Leave it out"):
            model(ids, attention_mask=torch.ones(2, 12), **{argument: torch.zeros(2, 5)})
    with pytest.raises(ValueError, match="takes no 'is_causal'"):
        model(ids, is_causal=True)


def test_what_the_collators_of_transformers_give_is_taken():
    model, rows = encoder("rope"), [{"input_ids": sequence.tolist()} for sequence in SEQUENCES]
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(rows)
    assert {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"} <= batch.keys()
    got = model(**{name: value for name, value in batch.items() if name != "labels"}).last_hidden_state
    expected = torch.cat([alone(model, sequence) for sequence in SEQUENCES])
    torch.testing.assert_close(got[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [*HEADS, "MultipleChoice"])
def test_no_part_of_a_head_is_named_like_a_part_of_the_encoder(name):
    # The loader would take one for the other: a head's `norm.weight` for the encoder's `norm.weight`.
    model = head(name, "rope", classifier_hidden_act="tanh")
    own = {child for child, _ in model.named_children()} - {"model"}
    assert own
    assert own.isdisjoint(child for child, _ in model.model.named_children())


def test_heads_share_a_key_only_where_it_means_the_same(tmp_path):
    """Both heads on the pooled sequence share theirs; any other head's weights are missing, and so reported."""
    names = (*HEADS, "MultipleChoice")
    models = {name: head(name, "rope", classifier_hidden_act="tanh") for name in names}
    own = {name: {key for key in model.state_dict() if not key.startswith("model.")} for name, model in models.items()}
    pooled = {f"classifier.{layer}.{kind}" for layer in ("dense", "out_proj") for kind in ("weight", "bias")}
    assert own["SequenceClassification"] == own["MultipleChoice"] == pooled
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    for saved, loaded in itertools.permutations(names, 2):
        is_alike = {saved, loaded} == {"SequenceClassification", "MultipleChoice"}
        cls = type(models[loaded])
        _, info = cls.from_pretrained(tmp_path / saved, output_loading_info=True, ignore_mismatched_sizes=True)
        tied = set(cls._tied_weights_keys or ())
        assert set(info["missing_keys"]) == (set() if is_alike else own[loaded] - tied), (saved, loaded)
        of_labels = {"classifier.out_proj.weight", "classifier.out_proj.bias"}  # three against one
        assert {key for key, *_ in info["mismatched_keys"]} == (of_labels if is_alike else set()), (saved, loaded)


@pytest.mark.parametrize("scheme", BY_HOOK)
def test_returned_hidden_states_and_attentions_are_part_of_the_graph(scheme):
    """As transformers' own test_retain_grad_hidden_states_attentions asks, with padding too."""
    ids, mask = padded([tokens(5, seed=1), tokens(3, seed=2)])
    for attentions, head in ((False, PosEncModel), (True, PosEncModel), (False, PosEncForSequenceClassification)):
        model = head(tiny_config(scheme, attn_implementation="eager" if attentions else "sdpa"))
        outputs = model(ids, attention_mask=mask, output_hidden_states=True, output_attentions=attentions)
        kept = [*outputs.hidden_states, *(outputs.attentions or ())]
        for tensor in kept:
            tensor.retain_grad()
        outputs[0].flatten()[0].backward()
        assert all(tensor.grad is not None and tensor.grad.abs().sum() > 0 for tensor in kept)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("unpad", [True, False])
def test_a_forward_hook_on_the_backbone_sees_padded_hidden_states_whoever_calls(name, unpad):
    ids, mask = padded(SEQUENCES, "left")
    model = head(name, "rope", unpad_inputs=unpad)
    seen = []
    model.model.register_forward_hook(lambda module, inputs, output: seen.append(output.last_hidden_state))
    model(ids, attention_mask=mask)
    expected = model.model(ids, attention_mask=mask).last_hidden_state
    assert expected.shape == (*ids.shape, 32)
    assert len(seen) == 2
    assert torch.equal(seen[0], expected)
    assert not seen[0][mask == 0].any()


def test_a_hook_on_the_backbone_changes_what_a_head_answers():
    ids, mask = padded(SEQUENCES)
    model = head("SequenceClassification", "rope")
    before = model(ids, attention_mask=mask).logits

    def double(module, inputs, output):
        output.last_hidden_state = 2 * output.last_hidden_state

    model.model.register_forward_hook(double)
    expected = model.classifier(2 * torch.stack([alone(model.model, s).mean(0) / 2 for s in SEQUENCES]))
    assert not torch.allclose(model(ids, attention_mask=mask).logits, before)
    torch.testing.assert_close(model(ids, attention_mask=mask).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", ["rope", "t5"])
def test_float64_stays_float64_under_autocast(scheme):
    ids, mask = padded(SEQUENCES)
    model = encoder(scheme).double()
    expected = model(ids, attention_mask=mask).last_hidden_state
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(ids, attention_mask=mask).last_hidden_state, expected)


@pytest.mark.parametrize("scheme", ["t5", "relative_key", "tupe+t5"])
def test_vmap_over_the_weights_of_the_scheme_alone_equals_a_loop(scheme):
    ids, mask = padded(SEQUENCES)
    model = encoder(scheme)
    weights = dict(model.named_parameters())
    pairs = {name: torch.stack((p, 1.1 * p)) for name, p in weights.items() if name.startswith("position.")}

    def encode(own):
        return torch.func.functional_call(model, {**weights, **own}, ids, {"attention_mask": mask}).last_hidden_state

    expected = torch.stack([encode({name: pair[i] for name, pair in pairs.items()}) for i in range(2)])
    torch.testing.assert_close(torch.func.vmap(encode)(pairs), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", ["learned", "rope", "rope+relative_key"])
def test_vmap_over_positions_equals_a_loop(scheme):
    model, ids = encoder(scheme, type_vocab_size=0), tokens(1, 9)
    positions = torch.stack((torch.arange(9), torch.arange(9).flip(0))).unsqueeze(1)

    def encode(position_ids):
        return model(ids, position_ids=position_ids).last_hidden_state

    expected = torch.stack([encode(each) for each in positions])
    torch.testing.assert_close(torch.func.vmap(encode)(positions), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["SequenceClassification", "QuestionAnswering"])
def test_a_traced_head_refuses_packed_rows_that_it_would_answer_as_one(name):
    ids, numbers = tokens(2, 6), torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    model = head(name, "rope")
    assert len(next(iter(model(ids, seq_idx=numbers).values()))) == 4
    with pytest.raises(Exception, match="can't count the sequences of packed rows"):
        torch.export.export(model, (ids,), {"seq_idx": numbers})
