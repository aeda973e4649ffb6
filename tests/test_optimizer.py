"""Biases move as fast as they have to, everything else as the optimizer was told."""

import pytest
import torch
from transformers import get_scheduler

from hf_posenc import scale_position_learning_rates
from tests.support.common import encoder


@pytest.mark.parametrize(
    ("scheme", "kwargs", "fast", "rate"),
    [
        ("t5", {"per_layer": True}, {"position.tables.0.weight", "position.tables.1.weight"}, 30),
        ("alibi", {"learned": True}, {"position.log_slopes.weight"}, 30),
        ("toeplitz", {}, {"position.tables.0.weight"}, 30),
        ("cable", {}, {f"position.shares.{layer}.{kind}" for layer in (0, 1) for kind in ("weight", "bias")}, 10),
        ("pope", {}, {"position.phases.0.weight", "position.phases.1.weight"}, 10),
        ("kerple", {}, {"position.shape.weight"}, 30),
        ("mlp_bias", {}, {f"position.{name}.{kind}" for name in ("up", "down") for kind in ("weight", "bias")}, 10),
        ("relative_key_query", {}, {"position.tables.0.weight", "position.tables.1.weight"}, 10),
        ("learned+t5", {}, {"position.t5.tables.0.weight"}, 30),
        ("learned", {}, set(), 1),
        ("rope", {}, set(), 1),
        ("dual_triangle", {}, set(), 1),
    ],
)
def test_only_what_acts_on_logits_moves_faster(scheme, kwargs, fast, rate):
    model = encoder(scheme, position_embedding_kwargs=kwargs or None).train()
    groups = [{"params": list(model.parameters()), "lr": 1e-3, "weight_decay": 0.5}]
    optimizer = torch.optim.AdamW(groups)
    scale_position_learning_rates(optimizer, model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    held = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(names.values())
    for group in optimizer.param_groups:
        group_names = {names[parameter] for parameter in group["params"]}
        is_fast = bool(group_names & fast)
        assert group_names == (fast if is_fast else set(names.values()) - fast)
        assert (group["lr"], group["weight_decay"]) == ((pytest.approx(1e-3 * rate), 0.0) if is_fast else (1e-3, 0.5))
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=2)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model(torch.arange(1, 9)[None])[0].square().sum().backward()
    optimizer.step()
    schedule.step()
    for name in fast - {"position.down.bias"}:  # one number on all logits: no gradient
        moved = (dict(model.named_parameters())[name] - before[name]).abs().max()
        assert moved.item() == pytest.approx(1e-3 * rate, rel=1e-2)
    halved = [5e-4, *[5e-4 * rate] * bool(fast)]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(halved)


def test_a_given_rate_is_every_schemes():
    model = encoder("learned")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scale_position_learning_rates(optimizer, model, position_rate=3.0)
    assert [(group["lr"], len(group["params"])) for group in optimizer.param_groups][1:] == [(pytest.approx(3e-3), 1)]
    slower = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scale_position_learning_rates(slower, model, position_rate=0.5)
    assert [group["lr"] for group in slower.param_groups] == [1e-3, pytest.approx(5e-4)]
    again = torch.optim.AdamW(encoder("t5").parameters(), lr=1e-3)
    scale_position_learning_rates(again, model, position_rate=1.0)
    assert len(again.param_groups) == 1


@pytest.mark.parametrize(("scheme", "decay"), [("t5", 0.0), ("learned", 0.5)])
@pytest.mark.parametrize("given", [1.0, 3.0])
def test_a_given_rate_changes_nothing_of_weight_decay(scheme, decay, given):
    model = encoder(scheme)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.5)
    scale_position_learning_rates(optimizer, model, position_rate=given)
    own = {*model.position.parameters()}
    found = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups if own & {*group["params"]}]
    assert found == [(pytest.approx(1e-3 * given), decay)]


def test_an_optimizer_that_makes_its_state_when_it_is_built_is_new_until_its_first_step():
    model = encoder("t5")
    optimizer = torch.optim.Adagrad(model.parameters())
    scale_position_learning_rates(optimizer, model)
    assert len(optimizer.param_groups) == 2
    model(torch.tensor([[1, 2, 3]])).last_hidden_state.sum().backward()
    for kind, momentum in ((torch.optim.Adagrad, {}), (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {})):
        used = kind(model.parameters(), **momentum)
        used.step()
        with pytest.raises(ValueError, match="Call this once, before any schedule"):
            scale_position_learning_rates(used, model)


def test_rates_are_set_once_and_before_anything_else():
    model = encoder("t5")
    for spoil in (
        lambda optimizer: scale_position_learning_rates(optimizer, model),
        lambda optimizer: get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=2),
    ):
        optimizer = torch.optim.AdamW(model.parameters())
        spoil(optimizer)
        with pytest.raises(ValueError, match="Call this once, before any schedule"):
            scale_position_learning_rates(optimizer, model)
    for name, rate in [("position_rate", -1.0), ("position_rate", float("nan")), ("word_rate", float("inf"))]:
        with pytest.raises(ValueError, match=f"{name}=.* is out of range. Give 0 or"):
            scale_position_learning_rates(torch.optim.AdamW(model.parameters()), model, **{name: rate})
