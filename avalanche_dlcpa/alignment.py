"""Step 3, classifier alignment: the classifier follows the stable learner's features (Eq. 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

SchedulerFactory = Callable[[Optimizer], LRScheduler]


class ClassifierAlignment:
    """The state and order of classifier alignment: an SGD and a schedule, fresh at each experience.

    Plain SGD without momentum or weight decay, as in the authors' runs.

    Args:
        lr: Learning rate; 0.2 (CIFAR-100) or 0.05 (Tiny-ImageNet) in the authors' runs.
        scheduler: Makes a schedule for the optimizer of an experience, stepped once an epoch, such
            as ``lambda optimizer: MultiStepLR(optimizer, [99])``; None: constant.

    Raises:
        ValueError: ``lr`` not above 0.
    """

    def __init__(self, lr: float, scheduler: SchedulerFactory | None = None):
        if not lr > 0:
            raise ValueError(f"Expected the classifier's learning rate to be above 0, got {lr}.")
        self.lr = lr
        self.make_scheduler = scheduler
        self.optimizer: Optimizer | None = None
        self.scheduler: LRScheduler | None = None

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """Start an experience with the parameters of its classifiers."""
        self.optimizer = SGD(parameters, lr=self.lr)
        self.scheduler = self.make_scheduler(self.optimizer) if self.make_scheduler else None

    def follow(self, parameters: Iterable[nn.Parameter]) -> None:
        """Train these parameters from now on: a head that grew has new ones. SGD has no state."""
        assert self.optimizer is not None
        self.optimizer.param_groups[0]["params"] = list(parameters)

    def step_(self, loss: Tensor) -> None:
        """One step on the classifiers for the loss of Eq. 9, in place."""
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        with torch.enable_grad():
            loss.backward()
        self.optimizer.step()

    def end_epoch(self) -> None:
        """Advance the schedule."""
        if self.scheduler is not None:
            self.scheduler.step()

    def end(self) -> None:
        """Finish an experience: drop optimizer, schedule and the last gradients."""
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        self.optimizer = self.scheduler = None
