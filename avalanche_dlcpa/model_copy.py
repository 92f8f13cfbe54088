"""What a copy of a user's model computes with: its own weights, and not those of the original."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from torch import nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def expect_copyable(model: nn.Module) -> None:
    """Refuse a model whose copies would still compute with its own parts.

    A function that a module holds is not copied with it; what it looks up in the module where it
    was made stays what it was.

    Raises:
        ValueError: Names the function.
    """
    parts = {id(part) for part in model.modules()}
    for name, part in model.named_modules():
        for attribute, function in _functions_of(part):
            if any(id(value) in parts for value in _held_by(function)):
                where = f"{name}.{attribute}" if name else attribute
                raise ValueError(
                    "Expected `model` to be one that can be copied, got the function "
                    f"'{where}', which holds on to a module of it and in a copy would compute with "
                    "the weights of the original: make it a method."
                )


def _functions_of(part: nn.Module) -> Iterator[tuple[str, FunctionType]]:
    """Plain functions among what is copied of a module, and its hooks."""
    try:
        state = part.__getstate__()  # without what compiling it has left
    except RuntimeError:  # parametrized modules can be copied, but tell no state
        state = vars(part)
    for attribute, value in (state if isinstance(state, dict) else vars(part)).items():
        values = value.values() if attribute in _HOOKS else [value]
        yield from ((attribute, each) for each in values if isinstance(each, FunctionType))


def _held_by(function: FunctionType) -> Iterator[Any]:
    """What a function brings along from where it was made."""
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield value.__self__ if isinstance(value, MethodType) else value
    yield from function.__defaults__ or ()
