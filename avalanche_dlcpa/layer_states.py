"""What layers remember beside their tensors: counters, rates that were changed, what is frozen."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from avalanche_dlcpa.snapshot import NoPlainStateError, capture, restore

OF_ANY_MODULE = frozenset(vars(nn.Module())) - {"training"}  # tensors, layers and hooks


def layer_states(module: nn.Module) -> dict[str, Any]:
    """The plain attributes of all layers of a module, and which parameters take no gradient.

    Plain are numbers, words and None, also in lists, tuples, sets and dicts. Tensors are left to
    ``state_dict``: a layer may hold its own parameters in a list.

    Returns:
        Plain data for `set_layer_states_`.
    """
    return {
        "attributes": {name: _attributes_of(layer) for name, layer in module.named_modules()},
        "frozen": [name for name, p in module.named_parameters() if not p.requires_grad],
    }


def set_layer_states_(module: nn.Module, states: dict[str, Any]) -> None:
    """Make the layers of a module be as `layer_states` told, in place."""
    for name, layer in module.named_modules():
        own = _attributes_of(layer)
        for attribute, saved in states["attributes"][name].items():
            # One that is the same stays the same object, which a hook may hold, too.
            if is_kept(attribute) and (attribute not in own or own[attribute] != saved):
                setattr(layer, attribute, restore(vars(layer).get(attribute), saved))
    frozen = set(states["frozen"])
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in frozen)


def is_kept(name: str) -> bool:
    """Whether an attribute is one that a checkpoint may set, whatever its file says."""
    return not name.startswith("__") and name not in OF_ANY_MODULE


def _attributes_of(layer: nn.Module) -> dict[str, Any]:
    found = {}
    for name, value in vars(layer).items():
        if is_kept(name) and _is_plain(value):
            with contextlib.suppress(NoPlainStateError):  # of a class of their own, such as enums
                found[name] = capture(value, name)
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | bytes | np.generic)
