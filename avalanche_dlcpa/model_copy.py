"""Copies of a user's model, which compute with weights of their own, not those of the original."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from avalanche.models import avalanche_forward
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from avalanche_dlcpa.random_states import preserved_random_states

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def computed_tensors(module: nn.Module) -> list[Tensor]:
    """What a module holds of its last pass, through which gradients flow.

    Such are the weights that ``torch.nn.utils.weight_norm`` and ``prune`` compute before each pass,
    and what a model keeps to be looked at.
    """
    held = [leaf for part in module.modules() for leaf in tree_leaves(vars(part))]
    return [leaf for leaf in held if isinstance(leaf, Tensor) and not leaf.is_leaf]


def copy_of(module: ModuleT, *, watched: bool = False) -> ModuleT:
    """A deep copy, also of a module with `computed_tensors`, which torch refuses to copy.

    The copy has their values, until its own pass puts others in their place.

    Args:
        module: Any.
        watched: Whether an answer that comes from these values shall take a gradient.
    """
    values = {id(x): x.detach().requires_grad_(watched) for x in computed_tensors(module)}
    return copy.deepcopy(module, values)


def follow_modes_(copied: nn.Module, module: nn.Module) -> None:
    """Have each layer of a copy train or not as that of the module does: some may be frozen."""
    for twin, own in zip(copied.modules(), module.modules(), strict=True):
        twin.training = own.training


def expect_copyable(
    model: nn.Module, x: Tensor, *, owner: Any, task_labels: Tensor | None = None
) -> None:
    """Look once, in a pass of a copy, whether it has weights of its own.

    A function that a module holds, or a hook, is not copied with it: what it looks up where it was
    made stays what it was. Nor does a tensor that was computed from weights, once, follow them. In
    a copy without gradients both show by their gradient. Draws nothing, changes nothing, and waits
    for no device.

    Args:
        model: To be copied.
        x: A mini-batch, (B, ...).
        owner: Who asks; ``owner.copy_suits`` becomes True where nothing was raised.
        task_labels: For a multi-task model, (B,).

    Raises:
        ValueError: It has not.
    """
    if owner.copy_suits:
        return
    plain: nn.Module = getattr(model, "_orig_mod", model)  # of torch.compile, not to do it twice
    twin = copy_of(plain, watched=True).requires_grad_(False)
    with preserved_random_states(x.device), torch.enable_grad():
        answer = avalanche_forward(twin, x.detach(), task_labels)
    if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(answer)):
        raise ValueError(
            "Expected `model` to be one that can be copied, got one whose copy computes with "
            "weights of the original, such as by a function made in its __init__, or with tensors "
            "that learn and are no parameters: make functions methods, and tensors nn.Parameter, "
            "and compute in each forward pass what depends on parameters or on earlier passes."
        )
    owner.copy_suits = True
