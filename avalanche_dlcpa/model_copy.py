"""What a copy of a user's model computes with: weights of its own, not those of the original."""

from __future__ import annotations

import copy
from typing import Any

import torch
from avalanche.models import avalanche_forward
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from avalanche_dlcpa.random_states import preserved_random_states


def expect_copyable(
    model: nn.Module, x: Tensor, *, owner: Any, task_labels: Tensor | None = None
) -> None:
    """Look once, in a pass of a copy, whether it has weights of its own.

    A function that a module holds, or a hook, is not copied with it: what it looks up where it was
    made stays what it was. In a copy without gradients such a weight shows by its gradient. Draws
    nothing, changes nothing, and waits for no device.

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
    twin = copy.deepcopy(plain).requires_grad_(False)
    with preserved_random_states(x.device), torch.enable_grad():
        answer = avalanche_forward(twin, x.detach(), task_labels)
    if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(answer)):
        raise ValueError(
            "Expected `model` to be one that can be copied, got one whose copy computes with "
            "weights of the original, such as by a function made in its __init__, or with tensors "
            "that learn and are no parameters: make functions methods, and tensors nn.Parameter."
        )
    owner.copy_suits = True
