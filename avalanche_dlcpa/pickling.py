"""The one repair that Avalanche's `save_checkpoint` needs beside a current torch.

Avalanche 0.6.0 pickles a whole strategy with dill. dill looks a class up by its module, as an
attribute of that module's package; ``torch/optim/__init__.py`` deletes its submodules' names
(``del sgd, adam, ...``), so dill takes an optimizer's class for one that cannot be imported and
pickles it by value, with all that it refers to. Beside torch 2.14 that ends in "Can't pickle
sentinel"; with any optimizer and any strategy (ContinualAI/avalanche issue 1549).
"""

from __future__ import annotations

import sys

import torch.optim
from torch.optim import Optimizer


def let_dill_find(optimizer: Optimizer) -> None:
    """Make the class of one of torch's optimizers an attribute where dill looks for it.

    Puts the deleted name of its submodule, such as ``torch.optim.sgd``, back. Does nothing for a
    name that is there (an older torch) and for optimizers from elsewhere.

    Args:
        optimizer: About to be pickled.
    """
    for cls in type(optimizer).__mro__:
        package, _, name = cls.__module__.rpartition(".")
        module = sys.modules.get(cls.__module__)
        if package == "torch.optim" and module is not None and not hasattr(torch.optim, name):
            setattr(torch.optim, name, module)
