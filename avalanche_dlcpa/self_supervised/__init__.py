"""Step 1, plastic learning: the self-supervised heads, one a file, on solo-learn's losses."""

from __future__ import annotations

import difflib

from avalanche_dlcpa.self_supervised.barlow import BarlowTwins
from avalanche_dlcpa.self_supervised.byol import BYOL
from avalanche_dlcpa.self_supervised.head import (
    SelfSupervisedHead,
    momentum_copy,
    momentum_update_,
    multilayer_perceptron,
)
from avalanche_dlcpa.self_supervised.mocov2 import MoCoV2
from avalanche_dlcpa.self_supervised.nnclr import NNCLR
from avalanche_dlcpa.self_supervised.simclr import SimCLR
from avalanche_dlcpa.self_supervised.simsiam import SimSiam
from avalanche_dlcpa.self_supervised.vicreg import VICReg

HEADS: dict[str, type[SelfSupervisedHead]] = {
    "mocov2": MoCoV2,
    "byol": BYOL,
    "simclr": SimCLR,
    "vicreg": VICReg,
    "barlow": BarlowTwins,
    "simsiam": SimSiam,
    "nnclr": NNCLR,
}

__all__ = [
    "BYOL",
    "HEADS",
    "NNCLR",
    "BarlowTwins",
    "MoCoV2",
    "SelfSupervisedHead",
    "SimCLR",
    "SimSiam",
    "VICReg",
    "make_head",
    "momentum_copy",
    "momentum_update_",
    "multilayer_perceptron",
]


def make_head(ssl: str | SelfSupervisedHead | None) -> SelfSupervisedHead | None:
    """Turn the ``ssl`` argument of `DLCPAStrategy` into a head.

    Args:
        ssl: A name of `HEADS`, a head, or None for no self-supervised loss.

    Raises:
        ValueError: An unknown name.
        TypeError: Neither a name nor a head nor None.
        ImportError: solo-learn is missing.
    """
    if ssl is None or isinstance(ssl, SelfSupervisedHead):
        return ssl
    if not isinstance(ssl, str):
        raise TypeError(
            f"Expected `ssl` to be a name, a SelfSupervisedHead or None, got {type(ssl).__name__}."
        )
    if ssl not in HEADS:
        near = difflib.get_close_matches(ssl, HEADS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"Expected `ssl` to be one of {', '.join(HEADS)}, got '{ssl}'.{hint}")
    return HEADS[ssl]()
