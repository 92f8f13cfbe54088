"""The self-supervised losses of solo-learn, loaded one file at a time.

solo-learn 1.0.2 pins a torch of 2021 and its package imports pytorch-lightning, but each loss is
one file that needs torch alone. So it is installed with ``--no-deps``, and only those are loaded.
No other module of ours knows about this.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch

INSTALL_COMMAND = "pip install --no-deps solo-learn==1.0.2"


def load_loss(name: str) -> Callable[..., torch.Tensor]:
    """Load one of solo-learn's loss functions.

    Args:
        name: The loss without its suffix, such as ``"simclr"`` for ``simclr_loss_func``.

    Returns:
        The function, as solo-learn defines it.

    Raises:
        ImportError: solo-learn is not installed; the message holds the command that installs it.
    """
    return getattr(_load_module(name), f"{name}_loss_func")


@functools.cache
def _load_module(name: str):
    path = _losses_folder() / f"{name}.py"
    if not path.is_file():
        raise ImportError(
            f"Expected solo-learn's loss '{name}' in its folder losses/, got no such file. "
            f"Run: {INSTALL_COMMAND}"
        )
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _losses_folder() -> Path:
    # find_spec does not import the package: `import solo` fails beside a current torch.
    spec = importlib.util.find_spec("solo")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            "Expected solo-learn, whose self-supervised losses DLCPA uses, to be installed. "
            f"Run: {INSTALL_COMMAND} (or pass ssl=None to learn without a self-supervised loss)"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "losses"
