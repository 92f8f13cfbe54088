"""Half precision for the passes through the networks; everything else stays in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PRECISIONS = ("float32", "bf16")


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context in which passes through a network run.

    With ``"bf16"`` torch's autocast multiplies and convolves in bfloat16. Parameters, gradients and
    the statistics of batch norm stay in float32. With ``"float32"`` nothing is changed.

    Args:
        precision: One of `PRECISIONS`.
        device: Of the network.
    """
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def full_precision(x: Tensor) -> Tensor:
    """A tensor as float32, where it is of a narrower floating dtype; others as they are.

    Example:
        >>> full_precision(torch.ones(1, dtype=torch.bfloat16)).dtype
        torch.float32
        >>> full_precision(torch.ones(1, dtype=torch.float64)).dtype
        torch.float64
    """
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x


def in_full_precision(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Call a function outside of autocast, with tensors of narrower dtypes as float32.

    Args:
        function: What to call.
        arguments: Of it; the first is a tensor.
    """
    wide = [full_precision(a) if isinstance(a, Tensor) else a for a in arguments]
    with torch.autocast(wide[0].device.type, enabled=False):
        return function(*wide)
