"""Models of torch.compile, whose hooks are silent: a graph that has been made goes on without."""

from __future__ import annotations

import contextlib

import torch
from torch import nn


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile was called on a model or on a part of it."""
    return any(
        "_orig_mod" in part._modules or part._compiled_call_impl is not None
        for part in model.modules()
    )


def eagerly(model: nn.Module) -> contextlib.AbstractContextManager[object]:
    """Within this context a model runs as it was written, and its hooks are called."""
    if not is_compiled(model):
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")
