"""What silently goes wrong in avalanche-lib 0.6.0 and would make a baseline weaker than it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.training import LearningWithoutForgetting
from avalanche.training.plugins import GEMPlugin, SynapticIntelligencePlugin
from avalanche.training.supervised import PackNet
from torch.optim.lr_scheduler import LRScheduler

from avalanche_dlcpa import NonFiniteLossError


def repair_gradient_episodic_memory() -> None:
    """Let GEM say that it diverged, where gradients are too large for its quadratic program.

    The solver then answers None, with which Avalanche computes on.
    """
    plain = GEMPlugin.solve_quadprog
    if getattr(plain, "is_repaired", False):
        return

    def solve_quadprog(self: Any, g: Any) -> Any:
        try:
            return plain(self, g)
        except TypeError as error:
            raise NonFiniteLossError(
                "Expected gradients for which GEM's quadratic program has a solution, got some of "
                f"size {float(g.norm()):.2g}: lower the learning rate."
            ) from error

    solve_quadprog.is_repaired = True  # type: ignore[attr-defined]
    GEMPlugin.solve_quadprog = solve_quadprog


def repair_plugins_of_packnet(strategy: PackNet) -> None:
    """Let the plugins that PackNet was given be called, which it puts as a list into its own."""
    given = strategy.plugins.pop(0)
    strategy.plugins[:0] = given or []


class ScheduleOfEachOptimizer(SupervisedPlugin):
    """A schedule of learning rates for PackNet, which makes its optimizer anew in each experience.

    Avalanche's `LRSchedulerPlugin` would go on lowering the rates of the first one. It has to come
    after the plugin of PackNet.
    """

    def __init__(self, make_scheduler: Callable[[Any], LRScheduler]):
        super().__init__()
        self._make_scheduler = make_scheduler

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Start with the optimizer of this experience."""
        self._scheduler = self._make_scheduler(strategy.optimizer)

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Advance."""
        self._scheduler.step()


def repair_synaptic_intelligence() -> None:
    """Let SI remember the weights before a step, also on a CPU.

    There ``detach().cpu().flatten()`` is a view of the parameters themselves, so that a step seems
    to have moved nothing, all importances are 0, and SI equals Naive.

    Avalanche cuts importances at 0.001 (after Maltoni and Lomonaco, 2019), which plain SGD makes
    nearly all of them reach: it gives a weight that moves at least one over learning rate and
    number of steps. So SI holds all weights alike. That stays, as without it sixteen combinations
    were worse, half of which diverged (``results/earlier_trials.csv``).
    """
    plain = SynapticIntelligencePlugin.extract_weights
    if getattr(plain, "is_repaired", False):
        return

    def extract_weights(model: Any, target: Any, excluded_parameters: Any) -> None:
        plain(model, target, excluded_parameters)
        for entry in target.values():
            entry.data = entry.data.clone()

    extract_weights.is_repaired = True  # type: ignore[attr-defined]
    SynapticIntelligencePlugin.extract_weights = staticmethod(extract_weights)


def repair_learning_without_forgetting() -> None:
    """Let the old network of LwF answer as it is evaluated.

    Avalanche copies it in training mode: its batch norm goes by the statistics of the mini-batch of
    another task.
    """
    plain = LearningWithoutForgetting.post_adapt
    if getattr(plain, "is_repaired", False):
        return

    def post_adapt(self: Any, agent: Any, exp: Any) -> None:
        plain(self, agent, exp)
        self.prev_model.eval()

    post_adapt.is_repaired = True  # type: ignore[attr-defined]
    LearningWithoutForgetting.post_adapt = post_adapt
