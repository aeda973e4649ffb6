"""Checks of what is trained: gradients, and where weights live."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ...model.modeling_posenc import PosEncForSequenceClassification, PosEncModel
from ...model.scheme_factory import make_scheme
from .case import CHECKED_LENGTH, SAME, SEQUENCES, Case, Failure, describe, draw_tokens, pad_batch, require_same


def _gradients(model: PosEncForSequenceClassification) -> dict[str, Tensor | None]:
    """Gradients of the projection, by weight."""
    model.zero_grad(set_to_none=True)
    _projection(model).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _projection(model: PosEncForSequenceClassification) -> Tensor:
    """A random projection of a batch's logits, which is long enough for far distances; dropout draws the same."""
    torch.default_generator.manual_seed(0)
    ids, mask = pad_batch([draw_tokens(CHECKED_LENGTH, seed=5), *SEQUENCES[:2]])
    logits = model(ids, attention_mask=mask).logits.double()
    return (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(11))).sum()


def check_gradients(case: Case) -> None:
    """A gradient reaches every parameter of the scheme and of the encoder, at every step, and is that of the logits."""
    model = case.classifier().train()
    first = _gradients(model)
    for name, gradient in first.items():
        if gradient is None:
            cause = "It isn't used, or a .detach(), .data, .item() or torch.no_grad() cuts it off"
            raise Failure(f"{name} gets no gradient. {cause}; distributed training stops at such a parameter.")
        if not bool(torch.isfinite(gradient).all()):
            raise Failure(f"the gradient of {name} isn't finite. Usual causes: 0 ** r, sqrt or log at distance 0.")
        if name.startswith("model.position.") and not bool(gradient.any()):
            raise Failure(f"the gradient of {name} is exactly zero: it has no effect on the logits.")
    try:
        _gradients(model)
    except RuntimeError as error:
        raise Failure(
            f"the second step fails: {describe(error)}. Keep nothing computed from weights between two forwards."
        ) from error
    _check_rise(model, {name: gradient for name, gradient in first.items() if gradient is not None})


def _check_rise(model: PosEncForSequenceClassification, gradients: dict[str, Tensor]) -> None:
    """A step along the gradient of the scheme's weights changes the logits as the gradient says."""
    weights = [(w, gradients[name]) for name, w in model.named_parameters() if name.startswith("model.position.")]
    if not weights:
        return
    length = float(torch.stack([gradient.norm() for _, gradient in weights]).norm())
    for step in (2e-3, 2e-4):  # a sharp scheme isn't straight over the longer one
        rise = _rise(model, weights, step / length)
        expected = 2 * step * length
        if abs(rise - expected) <= 0.1 * expected + SAME:
            return
    raise Failure(
        f"along the gradient of the scheme's weights the logits change {rise / expected:.2f} times as much as it "
        "says, allowed is 0.9 to 1.1. Usual causes: a .detach(), or the backward of an autograd.Function; one that "
        "is meant, such as a straight-through estimate, fails this check alone."
    )


@torch.no_grad()
def _rise(model: PosEncForSequenceClassification, weights: list[tuple[nn.Parameter, Tensor]], share: float) -> float:
    """The change of the projection from so much of the gradient below the weights to as much above; they stay."""
    projections = []
    for move in (share, -2 * share, share):
        for weight, gradient in weights:
            weight.add_(gradient, alpha=move)
        projections.append(float(_projection(model)))
    return projections[0] - projections[1]


def check_checkpointing(case: Case) -> None:
    """Gradient checkpointing gives the same gradients."""
    expected = _gradients(case.classifier().train())
    model = case.classifier().train()
    model.gradient_checkpointing_enable()
    cause = "A hook must give the same whenever it is called: keep nothing of one call for the next."
    try:
        checkpointed = _gradients(model)
    except Exception as error:  # whatever the scheme raises
        raise Failure(f"checkpointing fails: {describe(error)}. {cause}") from error
    for name, gradient in expected.items():
        again = checkpointed[name]
        if gradient is None or again is None:
            if gradient is not again:
                raise Failure(f"{name} gets a gradient only with or only without checkpointing. {cause}")
            continue
        scale = max(1.0, float(gradient.abs().max()))
        require_same(again / scale, gradient / scale, f"The gradient of {name} with checkpointing and without", cause)


def check_weights(case: Case) -> None:
    """Weights live in children such as nn.Linear and nn.Embedding, and are used by calling those; no buffers."""
    model = case.classifier().train()
    scheme = model.model.position
    way_out = (
        "accelerate fetches offloaded weights when the module that owns them is called: use an nn.Embedding or "
        "nn.Linear, and call it."
    )
    owners = {
        module: name
        for name, module in scheme.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    }
    for module, name in owners.items():
        if hasattr(module, "uses"):  # a scheme, or a part of a composed one: the encoder calls its hooks, not itself
            direct = ", ".join(weight for weight, _ in module.named_parameters(recurse=False))
            raise Failure(f"{direct} is a parameter of the scheme itself{name and f' ({name})'}: {way_out}")
    called = set()
    for module in owners:
        module.register_forward_pre_hook(lambda module, _: called.add(module))
    _gradients(model)
    for module, name in owners.items():
        if module not in called and any(p.grad is not None for p in module.parameters(recurse=False)):
            raise Failure(f"the weights of {name} are used without calling it (as in {name}.weight[...]): {way_out}")
    if buffers := [name for name, _ in scheme.named_buffers()]:
        raise Failure(
            f"the scheme registers the buffer {buffers[0]} when it is used. Loading would leave it uninitialised, and "
            "half precision rounds it: recompute it in the hook from Python numbers."
        )
    _check_wrapped(model, owners)


def _check_wrapped(model: PosEncForSequenceClassification, owners: dict[nn.Module, str]) -> None:
    """Hooks call children, and read nothing of them but the weight."""
    for module, name in owners.items():
        model.model.position.set_submodule(name, _Wrapped(module))
    try:
        _gradients(model)
    except AttributeError as error:
        raise Failure(
            f"a hook reads an attribute of a child, which LoRA and quantisation replace: {describe(error)}. Keep the "
            "number in the scheme, and call the child."
        ) from error


class _Wrapped(nn.Module):
    """A child as PEFT wraps one: it is called, has the weight, and no other attribute of the child."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer, self.weight = base_layer, base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        """The child's."""
        return self.base_layer(x)


def check_constructor(case: Case) -> None:
    """A new model has the weights that the constructor sets; those that it draws may be drawn anew, as large."""
    schemes = []
    for seed in (1, 2):
        torch.default_generator.manual_seed(seed)
        schemes.append(make_scheme(case.config()))
    again = schemes[1].state_dict()
    in_model = PosEncModel(case.config()).position.state_dict()
    initialised = copy.deepcopy(schemes[1])
    initialised.init_weights(case.config().initializer_range)
    drawn_again = initialised.state_dict()
    for name, weight in schemes[0].state_dict().items():
        lost = (weight == again[name]) & (weight != in_model[name])
        if bool(lost.any()):
            raise Failure(
                f"{name} is set in the constructor ({float(weight[lost][0]):.3g}), and a new model draws it anew "
                f"({float(in_model[name][lost][0]):.3g}). Set it in init_weights, by transformers.initialization."
            )
        if not torch.equal(drawn_again[name], again[name]):  # init_weights draws it
            continue
        owner = schemes[0].get_submodule(name.rpartition(".")[0])
        if _another_size(weight, in_model[name]) and _another_size(weight, _as_pytorch_draws(owner, name)):
            raise Failure(
                f"{name} is drawn in the constructor (std {float(weight.std()):.3g}), and a new model draws it anew "
                f"(std {float(in_model[name].std()):.3g}). Draw it in init_weights, by transformers.initialization."
            )


def _another_size(first: Tensor, second: Tensor) -> bool:
    """True where two draws have standard deviations of which one is over twice the other; few numbers say none."""
    stds = sorted((float(first.std()), float(second.std()))) if first.numel() > 30 else [1.0, 1.0]
    return stds[1] > 2 * stds[0]


def _as_pytorch_draws(owner: nn.Module, name: str) -> Tensor:
    """The weight of a child as its class draws it, if that is PyTorch's; else the weight itself."""
    child: Any = copy.deepcopy(owner)
    draw = getattr(child, "reset_parameters", None)
    if draw is not None and draw.__module__.startswith("torch."):
        draw()
    return child.get_parameter(name.rpartition(".")[2])
