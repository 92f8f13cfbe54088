"""A user's model and optimizer, given back whole where the constructor that changes them fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.optim import Optimizer


@contextlib.contextmanager
def given_back_on_failure(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Take back what happens inside to the layers of a model and the groups of its optimizer.

    Only if it raises, as where the device is not there: the next try has both as they were.
    """
    places = list(model.modules())
    layers = [(dict(place._modules), getattr(place, "_auto_adapt", None)) for place in places]
    groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
    state = dict(optimizer.state)
    try:
        yield
    except BaseException:
        for place, (children, auto_adapt) in zip(places, layers, strict=True):
            place._modules.clear()
            place._modules.update(children)
            if auto_adapt is not None:
                place._auto_adapt = auto_adapt
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(before)
        optimizer.state.clear()
        optimizer.state.update(state)
        raise
