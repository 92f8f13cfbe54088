"""Step 3, classifier alignment: the classifier follows the stable learner's features (Eq. 9)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from avalanche_dlcpa.arguments import expect_rate
from avalanche_dlcpa.schedules import ExperienceSchedule, SchedulerFactory


class ClassifierAlignment:
    """The state and order of classifier alignment: an SGD and a schedule, fresh at each experience.

    Plain SGD without momentum or weight decay, as in the authors' runs.

    Args:
        lr: Learning rate; 0.2 (CIFAR-100) or 0.05 (Tiny-ImageNet) in the authors' runs.
        scheduler: Makes its schedule, see `ExperienceSchedule`; None: constant.
        lr_name: What errors call ``lr``.
        scheduler_name: What errors call ``scheduler``.

    Raises:
        ValueError: ``lr`` is not a finite number above 0.
        TypeError: ``scheduler`` is no function.
    """

    def __init__(
        self,
        lr: float,
        scheduler: SchedulerFactory | None = None,
        *,
        lr_name: str = "lr",
        scheduler_name: str = "scheduler",
    ):
        expect_rate(f"`{lr_name}`", lr)
        self.lr = lr
        self.optimizer: Optimizer | None = None
        self.schedule = ExperienceSchedule(scheduler, name=scheduler_name)

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """Start an experience with the parameters of its classifiers."""
        self.optimizer = SGD(parameters, lr=self.lr)
        self.schedule.begin(self.optimizer)

    def follow(self, parameters: Iterable[nn.Parameter]) -> None:
        """Train these parameters from now on: a head that grew has new ones. SGD has no state."""
        assert self.optimizer is not None
        self.optimizer.param_groups[0]["params"] = list(parameters)

    def step_(self, loss: Tensor) -> None:
        """One step on the classifiers for the loss of Eq. 9, in place."""
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)  # those of another loss, which others have left
        with torch.enable_grad():
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # no one else shall find these gradients

    def end_epoch(self) -> None:
        """Advance the schedule."""
        self.schedule.end_epoch()

    def end(self) -> None:
        """Finish an experience: drop optimizer and schedule."""
        self.optimizer = None
        self.schedule.end()

    def state_dict(self) -> dict[str, Any]:
        """Optimizer and schedule; their parts are None between experiences."""
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        return {"optimizer": optimizer, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` told; in an experience, after `begin`."""
        if self.optimizer is not None and state["optimizer"] is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
