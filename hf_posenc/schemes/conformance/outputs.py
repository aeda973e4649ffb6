"""Checks of what the encoder computes: batches, positions, backends, precision, length."""

import copy
import itertools

import torch

from .case import (
    DIFFERENT,
    SAME,
    SEQUENCES,
    Case,
    Failure,
    Skip,
    describe,
    draw_tokens,
    hidden_alone,
    largest_difference,
    pad_batch,
    require_same,
)

_ROUNDING = 0.02
"""The mean error of bfloat16 is a quarter of it in sound schemes."""

_SHUFFLED = [0, 6, 1, 5, 8, 4, 2, 7, 3]
"""An order of 9 tokens; the first stays, since a scheme may treat it apart: see `is_first`."""


def check_padding(case: Case) -> None:
    """A batch padded left or right gives the numbers of each sequence alone."""
    encoder = case.classifier().model
    expected = hidden_alone(encoder, case.sequences)
    for side, encoder.config.unpad_inputs in itertools.product(("left", "right"), (True, False)):
        ids, mask = pad_batch(case.sequences, side)
        hidden = encoder(ids, attention_mask=mask).last_hidden_state
        layout = f"padded on the {side} (unpad_inputs={encoder.config.unpad_inputs})"
        for row, alone in enumerate(expected):
            require_same(
                hidden[row][mask[row] == 1],
                alone,
                f"A sequence of length {len(alone)} {layout} and alone",
                "Compute from `tokens.positions` and `tokens.is_first` alone: never from the place in the row, its "
                "length, or what stands at padding.",
            )


def check_packing(case: Case) -> None:
    """Sequences packed into one row, in each way to declare it, or into padded rows give the numbers of each alone."""
    encoder, sequences = case.classifier().model, case.sequences
    lengths = [len(sequence) for sequence in sequences]
    number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    borders = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    declarations = {"position_ids": places, "seq_idx": number, "cu_seq_lens_q": borders}
    cause = (
        "A row may hold several sequences: compute from `tokens.positions` and `tokens.is_first` alone, row by row, "
        "without a cumulative sum or a maximum over the row."
    )
    start = 2 if max(lengths) + 2 <= case.longest(max(lengths) + 2) else 0  # as RoBERTa numbers its tokens
    expected, shifted = (torch.cat(hidden_alone(encoder, sequences, first)) for first in (0, start))
    for encoder.config.unpad_inputs in (True, False):
        setting = f"(unpad_inputs={encoder.config.unpad_inputs})"
        for name, value in declarations.items():
            hidden = encoder(torch.cat(sequences)[None], **{name: value}).last_hidden_state[0]
            require_same(hidden, expected, f"Sequences packed by {name} {setting} and alone", cause)
        hidden = encoder(torch.cat(sequences)[None], position_ids=places + start).last_hidden_state[0]
        require_same(hidden, shifted, f"Sequences packed by position_ids from {start} on {setting} and alone", cause)
        ids, mask = pad_batch([torch.cat(sequences[:2]), torch.cat(sequences[2:])], extra=2)
        position_ids = torch.zeros_like(ids)
        position_ids[mask == 1] = places[0]
        hidden = encoder(ids, attention_mask=mask, position_ids=position_ids).last_hidden_state[mask == 1]
        require_same(hidden, expected, f"Sequences packed into two padded rows {setting} and alone", cause)


def check_permutation(case: Case) -> None:
    """Tokens permuted together with their positions give the permuted result."""
    encoder, ids = case.classifier().model, SEQUENCES[0]
    expected = encoder(ids[None]).last_hidden_state[0][_SHUFFLED]
    for encoder.config.unpad_inputs in (True, False):
        require_same(
            encoder(ids[_SHUFFLED][None], position_ids=torch.tensor([_SHUFFLED])).last_hidden_state[0],
            expected,
            "Tokens permuted with their positions, and the permuted result",
            "The place in the row was used as the position: use `tokens.positions` instead of arange(S).",
        )


def check_order(case: Case) -> None:
    """Shuffled tokens give other logits (with mean pooling), unless the scheme declares `order_blind`."""
    model, ids = case.classifier(), case.sequences[-1]
    shuffled = torch.cat((ids[:1], ids[1:][torch.randperm(len(ids) - 1)]))
    difference = largest_difference(model(shuffled[None]).logits, model(ids[None]).logits)
    if case.position.order_blind and not difference <= SAME:
        raise Failure(
            f"the scheme declares order_blind, but shuffled tokens change the logits by {difference:.1e}, allowed is "
            f"{SAME:g}. Leave the declaration out."
        )
    if not case.position.order_blind and not difference >= DIFFERENT:
        raise Failure(
            f"shuffled tokens change the logits by {difference:.1e}, less than {DIFFERENT:g}. What the hooks return "
            "doesn't depend on `tokens.positions`, or no hook is overridden; a control declares order_blind = True."
        )


def check_shift(case: Case) -> None:
    """Shifting all positions changes nothing, or something, as the scheme declares in `shift_invariant`."""
    declared = case.position.shift_invariant
    if declared is None:
        raise Skip("the scheme doesn't declare shift_invariant (True: distances alone count; False: they don't).")
    encoder, ids = case.classifier().model, SEQUENCES[0]
    start = case.longest(46) - len(ids)  # 37: no power of two, nor a period that a scheme is likely to have
    shifted = encoder(ids[None], position_ids=torch.arange(start, start + len(ids))[None]).last_hidden_state
    difference = largest_difference(shifted, encoder(ids[None]).last_hidden_state)
    if declared and not difference <= SAME:
        raise Failure(
            f"the scheme declares shift_invariant = True, but a shift by {start} changes hidden states by "
            f"{difference:.1e}, allowed is {SAME:g}. Compute from p_j - p_i alone, or declare False."
        )
    if not declared and not difference >= DIFFERENT:
        raise Failure(
            f"the scheme declares shift_invariant = False, but a shift by {start} changes hidden states by "
            f"{difference:.1e}, less than {DIFFERENT:g}. Declare True, or None if it depends."
        )


def check_attention(case: Case) -> None:
    """Eager attention gives the numbers of sdpa, and probabilities that sum to one."""
    ids, mask = pad_batch(case.sequences, "left")
    real = mask == 1
    cause = (
        "No row of logits may be -inf or NaN throughout: a sequence may have one token, and the softmax of nothing "
        "differs between backends."
    )
    sdpa, eager = (case.classifier(attn_implementation=name).model for name in ("sdpa", "eager"))
    for eager_alone, sdpa_alone in zip(
        hidden_alone(eager, case.sequences), hidden_alone(sdpa, case.sequences), strict=True
    ):
        require_same(
            eager_alone, sdpa_alone, f"Eager attention and sdpa on a sequence of length {len(eager_alone)}", cause
        )
    fused = sdpa(ids, attention_mask=mask).last_hidden_state[real]
    require_same(eager(ids, attention_mask=mask).last_hidden_state[real], fused, "Eager attention and sdpa", cause)
    out = eager(ids, attention_mask=mask, output_attentions=True)
    require_same(out.last_hidden_state[real], fused, "Attention with output_attentions=True and without", cause)
    for weights in out.attentions:
        total = weights.sum(-1).transpose(1, 2)[real]
        require_same(total, torch.ones_like(total), "The sums of a token's attention probabilities, and 1", cause)


def check_bfloat16(case: Case) -> None:
    """Far positions (to 4000, or the last) and long texts cost no precision in bfloat16 and under autocast."""
    model = case.classifier(max_position_embeddings=4096).model
    last = min(4000, model.position.max_length or 4000)
    half = copy.deepcopy(model).to(torch.bfloat16)
    full = copy.deepcopy(half).float()  # the same rounded weights
    for precision, other in (("bfloat16", half), ("autocast to bfloat16", full)):
        errors = []
        for ids, start in ((SEQUENCES[0], 0), (SEQUENCES[0], last - 9), (draw_tokens(min(last, 500)), 0)):
            inputs = {"input_ids": ids[None], "position_ids": torch.arange(start, start + len(ids))[None]}
            with torch.autocast("cpu", torch.bfloat16, enabled=other is full):
                hidden = other(**inputs).last_hidden_state.float()
            errors.append(float((hidden - full(**inputs).last_hidden_state).abs().mean()))
        near, far, long = errors
        if not near <= _ROUNDING:
            raise Failure(
                f"the mean error of {precision} at the first 9 positions is {near:.1e}, more than {_ROUNDING:g}, which "
                "rounding doesn't make. Compute the same in every dtype: no branch may depend on one."
            )
        for where, error in ((f"at positions up to {last - 1}", far), (f"in {min(last, 500)} tokens", long)):
            if not error <= 3 * near + 1e-3:
                raise Failure(
                    f"the mean error of {precision} {where} is {error:.1e}, more than three times that of the first 9 "
                    f"positions ({near:.1e}) + 1e-03. Angles, distances and sums over tokens must be float32 or int64: "
                    "bfloat16 has no whole numbers between 2048 and 2064."
                )


def check_max_length(case: Case) -> None:
    """Up to `max_length` it works, past it one ValueError says so; without one, any length works."""
    model, limit = case.classifier().model, case.position.max_length
    if limit is None:
        hidden = model(draw_tokens(1, 300)).last_hidden_state
        far = model(draw_tokens(1, 9), position_ids=torch.arange(99_991, 100_000)[None]).last_hidden_state
        if not bool(torch.isfinite(hidden).all() and torch.isfinite(far).all()):
            raise Failure("300 tokens, or position 99999, give numbers that aren't finite, and max_length is None.")
        return
    try:
        model(draw_tokens(1, limit))
    except Exception as error:
        raise Failure(
            f"max_length={limit}, but {limit} tokens fail: {describe(error)}. It is the number of positions, one more "
            "than the last of them."
        ) from error
    for what, batch in (
        (f"{limit + 1} tokens", {"input_ids": draw_tokens(1, limit + 1)}),
        (f"position {limit}", {"input_ids": draw_tokens(1, 2), "position_ids": torch.tensor([[0, limit]])}),
    ):
        try:
            model(**batch)
        except ValueError:
            continue
        except Exception as error:
            raise Failure(f"{what} raise {describe(error)} instead of a ValueError before a kernel runs.") from error
        raise Failure(f"max_length={limit}, but {what} pass without an error.")
    ids, mask = pad_batch([draw_tokens(limit)], "left", extra=3)
    model(ids, attention_mask=mask)  # padding makes the row long, not the sequence
