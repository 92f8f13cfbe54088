"""Learning rate schedules that are made anew in each experience and stepped once an epoch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

SchedulerFactory = Callable[[Optimizer], LRScheduler]


class ExperienceSchedule:
    """A schedule that starts anew, from the first learning rates, in each experience.

    A rate that somebody sets between two experiences is the first one from then on.

    Avalanche's `LRSchedulerPlugin` keeps one scheduler and sets it back, which several of torch's
    schedulers do not survive (a warm-up runs at ten times the rate in the second experience).

    Args:
        make_scheduler: Makes the schedule of an experience, such as
            ``lambda optimizer: MultiStepLR(optimizer, [99])``; None: rates are left alone.
        name: What errors call ``make_scheduler``.

    Raises:
        TypeError: ``make_scheduler`` is no function of an optimizer alone.
    """

    def __init__(self, make_scheduler: SchedulerFactory | None, *, name: str):
        if make_scheduler is not None:
            _expect_factory(make_scheduler, name)
        self.make_scheduler = make_scheduler
        self.name = name
        self.scheduler: LRScheduler | None = None
        self._rates: list[float] | None = None
        self._left: list[float] | None = None

    def begin(self, optimizer: Optimizer) -> None:
        """Start an experience.

        Raises:
            TypeError: What the function made is no scheduler that is stepped without a metric.
            ValueError: It made a scheduler for another optimizer than the one that it was given.
        """
        if self.make_scheduler is None:
            return
        self._rates = self._first_rates(_rates_of(optimizer))
        _set_rates_(optimizer, self._rates)
        for group in optimizer.param_groups:
            group.pop("initial_lr", None)  # torch would go on from that of the last schedule
        scheduler = self.make_scheduler(optimizer)
        if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
            raise TypeError(
                f"Expected `{self.name}` to make an LRScheduler that steps without a metric, got "
                f"{type(scheduler).__name__}: for ReduceLROnPlateau use Avalanche's "
                "LRSchedulerPlugin."
            )
        if scheduler.optimizer is not optimizer:
            raise ValueError(
                f"Expected `{self.name}` to make a scheduler for the optimizer that it is given, "
                "got one for another optimizer: pass `lambda optimizer: StepLR(optimizer, 30)`."
            )
        self.scheduler, self._left = scheduler, _rates_of(optimizer)

    def _first_rates(self, rates: list[float]) -> list[float]:
        """After an experience that was broken off, those before it, but for what was set since."""
        if self._rates is None or self._left is None:
            return rates
        known = zip(rates, self._left, self._rates)  # noqa: B905 - a group may have been added
        first = [begun if rate == left else rate for rate, left, begun in known]
        return first + rates[len(first) :]

    def end_epoch(self) -> None:
        """Advance the schedule."""
        if self.scheduler is not None:
            self.scheduler.step()
            self._left = _rates_of(self.scheduler.optimizer)

    def end(self) -> None:
        """Drop the schedule of the experience, and put the first rates back."""
        if self.scheduler is not None:
            assert self._rates is not None
            _set_rates_(self.scheduler.optimizer, self._rates)
            self._left = self._rates
        self.scheduler = None

    def state_dict(self) -> dict[str, Any]:
        """The first learning rates, what it left of them, and the schedule, None between two."""
        scheduler = None if self.scheduler is None else self.scheduler.state_dict()
        return {"rates": self._rates, "left": self._left, "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` told; in an experience, after `begin`."""
        self._rates, self._left = state["rates"], state["left"]
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
            # torch would warn that no step has come before, which came before the checkpoint
            vars(self.scheduler.optimizer)["_opt_called"] = True


def _expect_factory(make_scheduler: Any, name: str) -> None:
    if not callable(make_scheduler):
        got = type(make_scheduler).__name__
    elif not _takes_one_argument(make_scheduler):
        got = f"{getattr(make_scheduler, '__name__', make_scheduler)}, which takes other arguments"
    else:
        return
    raise TypeError(
        f"Expected `{name}` to be a function that makes a scheduler, given an optimizer alone, got "
        f"{got}: pass `lambda optimizer: StepLR(optimizer, 30)`."
    )


def _takes_one_argument(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function in C, which does not tell
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True


def _set_rates_(optimizer: Optimizer, rates: list[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates):  # noqa: B905 - it keeps its own
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # the very tensor that schedules lower and graphs read
        else:
            group["lr"] = rate


def _rates_of(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]
