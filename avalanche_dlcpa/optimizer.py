"""Which parameters the user's optimizer trains, and its state in each experience."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch
from torch import nn
from torch.optim import Adagrad, Optimizer

from avalanche_dlcpa.dual_learner import DualLearner
from avalanche_dlcpa.model_head import find_head
from avalanche_dlcpa.self_supervised import SelfSupervisedHead


@dataclasses.dataclass(frozen=True)
class ModelParameters:
    """The parameters of a user's model, by what becomes of them.

    Attributes:
        plastic: Those of the plastic learner, by name, frozen ones too.
        others: Those of the head, which the classifiers replace, and of a ready `DualLearner`'s
            stable learner and classifiers.
    """

    plastic: dict[str, nn.Parameter]
    others: list[nn.Parameter]


def split_parameters(model: nn.Module, head: str | None) -> ModelParameters:
    """Tell plastic parameters from all others, before the model is taken apart.

    A parameter that the head shares with a layer below it is plastic, too.

    Raises:
        ValueError: See `find_head`.
    """
    if isinstance(model, DualLearner):
        inside = {id(p) for p in model.plastic.parameters()}
    else:
        below_head = f"{find_head(model, head)}."
        every = model.named_parameters(remove_duplicate=False)
        inside = {id(p) for name, p in every if not name.startswith(below_head)}
    plastic, others = {}, []
    for name, parameter in model.named_parameters():
        if id(parameter) in inside:
            plastic[name] = parameter
        else:
            others.append(parameter)
    return ModelParameters(plastic, others)


def check_optimizer(
    optimizer: Optimizer, parameters: ModelParameters, ssl: SelfSupervisedHead | None
) -> None:
    """Check that the optimizer holds all plastic parameters and nothing from elsewhere.

    Raises:
        ValueError: It lacks plastic parameters or holds foreign ones, or there are none; its step
            wants a closure.
    """
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            "Expected an optimizer that takes a step for gradients that are there, got "
            f"{type(optimizer).__name__}, whose step() computes the loss anew by a closure: choose "
            "another, such as SGD or Adam."
        )
    learning = {name: p for name, p in parameters.plastic.items() if p.requires_grad}
    if not learning:
        raise ValueError(
            "Expected `model` to have parameters to learn below its head, got a frozen one: set "
            "requires_grad_(True) on those that the plastic learner shall train."
        )
    held = _held(optimizer)
    lacking = [name for name, p in learning.items() if id(p) not in held]
    if lacking:
        raise ValueError(
            f"Expected `optimizer` to hold every parameter of the plastic learner, got one that "
            f"lacks {len(lacking)} of {len(learning)}, such as '{lacking[0]}': build it "
            "from model.parameters(), and freeze what shall not learn with requires_grad_(False)."
        )
    known = [*parameters.plastic.values(), *parameters.others]
    known += [] if ssl is None else list(ssl.parameters())
    foreign = held - {id(p) for p in known}
    if foreign:
        shapes = [
            tuple(p.shape)
            for group in optimizer.param_groups
            for p in group["params"]
            if id(p) in foreign
        ]
        raise ValueError(
            f"Expected `optimizer` to hold parameters of `model` alone, got {len(shapes)} others, "
            f"such as one of shape {shapes[0]}: build it from the parameters of this very model."
        )


def adopt_parameters_(
    optimizer: Optimizer, parameters: ModelParameters, ssl: SelfSupervisedHead | None
) -> None:
    """Make the optimizer train the plastic learner and the self-supervised head, nothing else.

    The head's parameters stay in the group where the user put them, or join the first group of
    plastic ones, in place. Frozen parameters stay, too: without a gradient they do not move, and
    thawed they learn.
    """
    heads = [] if ssl is None else [p for p in ssl.parameters() if p.requires_grad]
    trained = {id(p) for p in [*parameters.plastic.values(), *heads]}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) in trained]
        group.pop("param_names", None)  # of an optimizer of named parameters, some of which left
    for parameter in [p for p in optimizer.state if id(p) not in trained]:
        del optimizer.state[parameter]  # of one that has left, which no checkpoint could name
    held = _held(optimizer)
    add_parameters_(optimizer, [p for p in heads if id(p) not in held])


def expect_all_held(
    optimizer: Optimizer, plastic: nn.Module, ssl: SelfSupervisedHead | None = None
) -> None:
    """Refuse an optimizer that lacks what takes gradients by now, before an experience.

    Raises:
        ValueError: Parameters were thawed that it never held, or it was exchanged for another.
    """
    held = _held(optimizer)
    named = [*plastic.named_parameters(), *(() if ssl is None else ssl.named_parameters())]
    lacking = [name for name, p in named if p.requires_grad and id(p) not in held]
    if lacking:
        raise ValueError(
            "Expected the strategy's optimizer to hold every parameter that takes gradients, got "
            f"one that lacks {len(lacking)}, such as '{lacking[0]}', which would not learn: call "
            "`strategy.optimizer.add_param_group({'params': [...]})`, or requires_grad_(False)."
        )


def _held(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def add_parameters_(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    """Let parameters join the first group that trains any, else the first that holds any."""
    groups = [group for group in optimizer.param_groups if group["params"]]
    training = (g for g in groups if any(p.requires_grad for p in g["params"]))
    group = next(training, groups[0])
    group["params"] += parameters
    _begin_state_(optimizer)


def start_afresh_(optimizer: Optimizer) -> None:
    """Start the state of all parameters anew, in place."""
    optimizer.state.clear()
    _begin_state_(optimizer)


def _begin_state_(optimizer: Optimizer) -> None:
    """Do what Adagrad does in its constructor, and torch 2.6 nowhere else."""
    if not isinstance(optimizer, Adagrad):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in optimizer.state:
                start = torch.full_like(parameter, group["initial_accumulator_value"])
                optimizer.state[parameter] = {"step": torch.zeros(()), "sum": start}


class OtherGroupsError(ValueError):
    """The optimizer has not the groups of the state, which a script may have added."""


def load_optimizer_(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Let an optimizer go on from its ``state_dict`` of an earlier life.

    Raises:
        OtherGroupsError: It has other groups of parameters.
    """
    own, saved = (
        [len(group["params"]) for group in groups]
        for groups in (optimizer.param_groups, state["param_groups"])
    )
    if own != saved:
        raise OtherGroupsError(
            f"Expected an optimizer with groups of {saved} parameters, as in the checkpoint, got "
            f"groups of {own}: let the script add the others, as the run of the checkpoint did."
        )
    optimizer.load_state_dict(state)


def remove_parameters_(optimizer: Optimizer, module: nn.Module | None) -> None:
    """Take the parameters of a module out of the optimizer, in place."""
    leaving = set() if module is None else {id(p) for p in module.parameters()}
    for group in optimizer.param_groups:
        for parameter in [p for p in group["params"] if id(p) in leaving]:
            optimizer.state.pop(parameter, None)
        group["params"] = [p for p in group["params"] if id(p) not in leaving]
