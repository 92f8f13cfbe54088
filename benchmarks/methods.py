"""The methods of the comparisons by name, each in one place. Baselines are Avalanche's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from avalanche.training.supervised import EWC, LwF, Naive
from avalanche.training.templates import SupervisedTemplate
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR

from avalanche_dlcpa import DLCPAStrategy
from avalanche_dlcpa.self_supervised import MoCoV2


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of the comparisons.

    Attributes:
        title: For tables and pages.
        build: Network, hyperparameters, then Avalanche's keyword arguments -> strategy.
        draws_views: Whether it augments by views of its own, ``views``, and is therefore given
            images without the stream's augmentation.
    """

    title: str
    build: Callable[..., SupervisedTemplate]
    draws_views: bool = False


def _sgd(network: nn.Module, lr: float, momentum: float) -> SGD:
    return SGD(network.parameters(), lr=lr, momentum=momentum)


def _naive(network: nn.Module, *, lr: float, momentum: float = 0.0, **common: Any) -> Naive:
    return Naive(model=network, optimizer=_sgd(network, lr, momentum), **common)


def _ewc(
    network: nn.Module, *, lr: float, strength: float, momentum: float = 0.0, **common: Any
) -> EWC:
    optimizer = _sgd(network, lr, momentum)
    criterion = CrossEntropyLoss()  # Avalanche's EWC and LwF have no default
    return EWC(
        model=network, optimizer=optimizer, criterion=criterion, ewc_lambda=strength, **common
    )


def _lwf(
    network: nn.Module,
    *,
    lr: float,
    strength: float,
    temperature: float = 2.0,
    momentum: float = 0.0,
    **common: Any,
) -> LwF:
    optimizer = _sgd(network, lr, momentum)
    return LwF(
        model=network,
        optimizer=optimizer,
        criterion=CrossEntropyLoss(),
        alpha=strength,
        temperature=temperature,
        **common,
    )


def _dlcpa_mocov2(
    network: nn.Module,
    *,
    lr: float,
    classifier_lr: float,
    momentum: float = 0.0,
    supervised_weight: float = 10.0,
    encoder_momentum: float = 0.999,
    queue_size: int = 65_536,
    last_epochs: int = 1,
    views: Callable[..., Any],
    **common: Any,
) -> DLCPAStrategy:
    """DLCPA with MoCoV2; both learning rates fall to a tenth at the end (authors' runs)."""

    def schedule(optimizer: Any) -> MultiStepLR:
        return MultiStepLR(optimizer, [common["train_epochs"] - last_epochs])

    return DLCPAStrategy(
        model=network,
        optimizer=_sgd(network, lr, momentum),
        ssl=MoCoV2(momentum=encoder_momentum, queue_size=queue_size),
        supervised_weight=supervised_weight,
        classifier_lr=classifier_lr,
        scheduler=schedule,
        classifier_scheduler=schedule,
        views=views,
        **common,
    )


METHODS = {
    "naive": Method("Naive", _naive),
    "ewc": Method("EWC", _ewc),
    "lwf": Method("LwF", _lwf),
    "dlcpa-mocov2": Method("DLCPA + MoCoV2", _dlcpa_mocov2, draws_views=True),
}
