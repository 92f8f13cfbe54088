"""Step 2, stable updating, for any Avalanche strategy: a plugin on `averaging`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from avalanche.models.utils import avalanche_model_adaptation
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor, nn

from avalanche_dlcpa.arguments import expect_averageable
from avalanche_dlcpa.averaging import EMA_DECAY, ParameterAverage
from avalanche_dlcpa.batch_norm import batch_norms, recalibrate_batch_norm_
from avalanche_dlcpa.buffers import copy_buffers_
from avalanche_dlcpa.experiences import expect_images_of_evaluation, task_labels_in
from avalanche_dlcpa.model_copy import copy_of, expect_copyable
from avalanche_dlcpa.random_states import preserved_random_states
from avalanche_dlcpa.training_guards import (
    evaluate_at_end_,
    expect_one_by_one,
    expect_one_strategy,
    expect_whole_experience,
)


class _Block(NamedTuple):
    """Rows of a parameter that came into being in the same experience."""

    name: str
    start: int
    stop: int

    def of(self, parameters: dict[str, Tensor]) -> Tensor:
        parameter = parameters[self.name]
        return parameter[self.start : self.stop] if parameter.ndim else parameter


class _Generation(NamedTuple):
    """What came into being after ``birth`` experiences, and its mean since then."""

    birth: int
    blocks: list[_Block]
    average: ParameterAverage


class CumulativeParameterAveragingPlugin(SupervisedPlugin):
    """Keeps the running mean of a strategy's model over experiences, and evaluates with it.

    On any strategy that learns experience after experience, such as
    ``Naive(..., plugins=[CumulativeParameterAveragingPlugin()])``. It trains its own model as ever.
    After every optimizer step `averaged_model` holds the mean of the model over the experiences up
    to the present one (Eq. 8), with memory for one snapshot, and every evaluation answers with it.
    Rows and heads that a model grows are averaged since the experience in which they appeared.
    Batch norm statistics do not average well: they are computed anew on the experience's own images
    at its end, by the stream's transforms for evaluation, but for layers that are kept in
    evaluation mode or serve other tasks. Weights that another plugin puts back at the end, such as
    those of the best epoch, are those that count, except with ``"ema"``, which keeps its steps. All
    other buffers are those of the model.

    Args:
        update: ``"cumulative"``, or the rules of the paper's ablations ``"ema"`` and ``"copy"``.
        ema_decay: Of ``"ema"``, see `ParameterAverage`.

    Attributes:
        averaged_model: The averaged model; None before the first training.
        num_averaged: Number of experiences in the average.

    Raises:
        ValueError: Unknown ``update``, or ``ema_decay`` not between 0 and 1; in training: a second
            strategy, one that does not learn experience after experience, pieces of an experience,
            a model that cannot be copied or averaged, or images that evaluation cannot read.

    Example:
        ``examples/plugins_alone.py``.
    """

    copy_suits: bool = False
    _clock: Any = None

    def __init__(self, *, update: str = "cumulative", ema_decay: float = EMA_DECAY):
        super().__init__()
        ParameterAverage([], update=update, ema_decay=ema_decay)  # refuses now
        self.update, self.ema_decay = update, float(ema_decay)
        self.averaged_model: nn.Module | None = None
        self.num_averaged = 0
        self._generations: list[_Generation] = []
        self._left_out: str | None = None
        self._own_model: nn.Module | None = None
        self._has_statistics = False

    def leave_out(self, prefix: str) -> None:
        """Do not average the parameters below a module name; something else trains them."""
        self._left_out = prefix

    def before_training(self, strategy: Any, **kwargs: Any) -> None:
        """Put the strategy's own model back where an evaluation that raised has left the mean."""
        why = "it averages the model of the first"
        expect_one_strategy(self, self._clock, strategy, why=why)
        expect_one_by_one(strategy)
        self._clock = strategy.clock
        if self._own_model is not None:
            self._give_back(strategy)
            strategy.model.train()

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Take the snapshot; follow the model where it has grown."""
        if self.update == "cumulative":
            why = "every experience counts as a task of the average"
            expect_whole_experience(strategy.experience, why=why)
        expect_averageable(strategy.model)
        if batch_norms(strategy.model):
            expect_images_of_evaluation(strategy.experience, strategy.device)
        if self.averaged_model is None:
            self.averaged_model = copy_of(strategy.model).requires_grad_(False)
        self.averaged_model.train()
        with preserved_random_states(strategy.device):  # training is as without the plugin
            avalanche_model_adaptation(self.averaged_model, strategy.experience)
        self.averaged_model.to(strategy.device).requires_grad_(False)
        self._has_statistics = False
        self._add_generation(_parameters(strategy.model))
        for birth, blocks, average in self._generations:
            average.average = _pieces(blocks, _parameters(self.averaged_model))
            average.begin(self.num_averaged - birth)

    def _add_generation(self, parameters: dict[str, Tensor]) -> None:
        """Rows and parameters without an average yet start with the model's own values."""
        assert self.averaged_model is not None
        known = {block.name: block.stop for old in self._generations for block in old.blocks}
        new = []
        for name, parameter in parameters.items():
            rows = parameter.shape[0] if parameter.ndim else 1
            left_out = self._left_out is not None and name.startswith(f"{self._left_out}.")
            if known.get(name, 0) < rows and not left_out:
                new.append(_Block(name, known.get(name, 0), rows))
        if new:
            mean = _pieces(new, _parameters(self.averaged_model))
            torch._foreach_copy_(mean, _pieces(new, parameters))
            average = ParameterAverage(mean, update=self.update, ema_decay=self.ema_decay)
            self._generations.append(_Generation(self.num_averaged, new, average))

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Have the end of the experience evaluated, where the mean has statistics of its own."""
        evaluate_at_end_(strategy, draws=True)

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Look once whether the average computes with parameters of its own."""
        task_labels = task_labels_in(strategy.mbatch, strategy.experience.dataset)
        expect_copyable(strategy.model, strategy.mb_x, owner=self, task_labels=task_labels)

    def _take_buffers(self, strategy: Any) -> None:
        """Have the buffers of the model, unless an alignment, in its passes, keeps our own up."""
        assert self.averaged_model is not None
        if self._left_out is None:
            copy_buffers_(self.averaged_model, strategy.model)

    def _follow_modes(self, strategy: Any) -> None:
        """Freeze what is frozen in the model by its mode."""
        assert self.averaged_model is not None
        modules = dict(strategy.model.named_modules())
        for name, own in self.averaged_model.named_modules():  # an evaluation may have added some
            own.training = modules.get(name, own).training

    def after_update(self, strategy: Any, **kwargs: Any) -> None:
        """Write the mean that includes the step just taken."""
        assert self.averaged_model is not None
        mean, source = _parameters(self.averaged_model), _parameters(strategy.model)
        for _, blocks, average in self._generations:
            average.average = _pieces(blocks, mean)  # an evaluation may have grown a head
            average.update_(_pieces(blocks, source))
        if self._left_out is not None:
            self._follow_modes(strategy)  # before an alignment's pass, which keeps statistics up

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Count the experience and compute the batch norm statistics of the mean."""
        assert self.averaged_model is not None
        mean, source = _parameters(self.averaged_model), _parameters(strategy.model)
        for _, blocks, average in self._generations:
            average.average = _pieces(blocks, mean)
            average.end(_pieces(blocks, source))
        self.num_averaged += 1
        self._take_buffers(strategy)
        self._follow_modes(strategy)
        dataset = strategy.experience.dataset.eval()
        with preserved_random_states(strategy.device):  # dropout draws
            recalibrate_batch_norm_(
                self.averaged_model,
                dataset,
                batch_size=strategy.train_mb_size,
                device=strategy.device,
            )
        self._has_statistics = True

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        """Put the averaged model in the place of the strategy's own."""
        self._give_back(strategy)
        if self.averaged_model is not None:
            if not self._has_statistics:
                self._take_buffers(strategy)  # amid an experience those of the model serve
            self._own_model, strategy.model = strategy.model, self.averaged_model.eval()

    def after_eval(self, strategy: Any, **kwargs: Any) -> None:
        """Put the strategy's own model back."""
        self._give_back(strategy)

    def _give_back(self, strategy: Any) -> None:
        if self._own_model is not None:
            strategy.model, self._own_model = self._own_model, None
            assert self.averaged_model is not None
            # amid an experience it goes on as in training: an alignment takes features from it
            self.averaged_model.train(not self._has_statistics)


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _pieces(blocks: list[_Block], parameters: dict[str, Tensor]) -> list[Tensor]:
    return [block.of(parameters) for block in blocks]
