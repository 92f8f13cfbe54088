"""Step 3, classifier alignment, for any Avalanche strategy: a plugin on `alignment`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from avalanche.models import MultiHeadClassifier, avalanche_forward
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor, nn

from avalanche_dlcpa.alignment import ClassifierAlignment
from avalanche_dlcpa.arguments import expect_criterion
from avalanche_dlcpa.averaging_plugin import CumulativeParameterAveragingPlugin
from avalanche_dlcpa.buffers import BuffersGuard
from avalanche_dlcpa.compiled import eagerly
from avalanche_dlcpa.experiences import classes_of, task_label_of, task_labels_in
from avalanche_dlcpa.model_head import expect_plain, find_head, linear_of
from avalanche_dlcpa.model_watch import watch_answer_
from avalanche_dlcpa.schedules import SchedulerFactory
from avalanche_dlcpa.training_guards import expect_one_by_one


class ClassifierAlignmentPlugin(SupervisedPlugin):
    """Trains the last linear layer on the features below it, after every iteration.

    Given a `CumulativeParameterAveragingPlugin`, it aligns the head of that plugin's averaged model
    with the averaged features, which the mean of the heads would not fit; the head is then left out
    of the average. Alone, it aligns the head of the strategy's own model. The loss is that of the
    strategy over the classes of the present experience; no gradient passes the head.

    Args:
        average: The plugin whose averaged model is aligned, also in the strategy's list of plugins,
            before this one; None: the strategy's own model.
        lr: Learning rate of the head's own SGD.
        scheduler: Makes its schedule, see `ClassifierAlignment`.
        head: Name of the last linear layer; None: see `find_head`.

    Raises:
        ValueError: ``lr`` not above 0; in training: no head to be found, or a frozen one; an
            averaging plugin that does not come before this one; a criterion with a weight for each
            class; a strategy or a model that does not suit.
        TypeError: ``scheduler`` is no function.

    Example:
        ``examples/plugins_alone.py``.
    """

    model_suits: bool = False

    def __init__(
        self,
        average: CumulativeParameterAveragingPlugin | None = None,
        *,
        lr: float = 0.2,
        scheduler: SchedulerFactory | None = None,
        head: str | None = None,
    ):
        super().__init__()
        self.average = average
        self.head = head
        self.alignment = ClassifierAlignment(lr, scheduler)
        self._classes: Tensor | None = None
        self._buffers: BuffersGuard | None = None

    def before_training(self, strategy: Any, **kwargs: Any) -> None:
        """Find the head and take it out of the average."""
        expect_one_by_one(strategy)
        expect_criterion(strategy._criterion)
        self.head = find_head(strategy.model, self.head)
        expect_plain(strategy.model, self.head)
        _expect_untied(strategy.model, self.head)
        if self.average is not None:
            if self.average not in strategy.plugins:
                raise ValueError(
                    "Expected the averaging plugin to be among the strategy's plugins, got only "
                    "the alignment plugin: pass plugins=[average, alignment]."
                )
            if strategy.plugins.index(self.average) > strategy.plugins.index(self):
                raise ValueError(
                    "Expected the averaging plugin before the alignment plugin, got it after: pass "
                    "plugins=[average, alignment]."
                )
            self.average.leave_out(self.head)

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Start a fresh optimizer on the head."""
        layer = self._layer(strategy)
        if self.average is None and not layer.weight.requires_grad:
            raise ValueError(
                f"Expected the head '{self.head}' to be one that learns, got a frozen one: give it "
                "requires_grad_(True), or leave the plugin out."
            )
        self._classes = torch.tensor(classes_of(strategy.experience), device=layer.weight.device)
        self.alignment.begin(layer.requires_grad_(True).parameters())

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Look once whether the model answers with what its head gives, and nothing after it."""
        if not self.model_suits:
            assert self.head is not None
            watch_answer_(strategy.model, self.head, self, answers_alone=False)

    def _model(self, strategy: Any) -> nn.Module:
        if self.average is None:
            return strategy.model
        assert self.average.averaged_model is not None
        return self.average.averaged_model

    def _layer(self, strategy: Any) -> nn.Linear:
        assert self.head is not None
        head = self._model(strategy).get_submodule(self.head)
        if isinstance(head, MultiHeadClassifier):
            head = head.classifiers[str(task_label_of(strategy.experience))]
        return linear_of(head)

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """One step of the head on those samples of the mini-batch that belong to the experience."""
        assert self._classes is not None
        layer = self._layer(strategy)
        self.alignment.follow(layer.requires_grad_(True).parameters())
        features = self._features(strategy, layer)
        rows = self._own(strategy).nonzero().flatten()  # looked up once, as a GPU is waited for
        if len(rows) == 0:
            return
        bias = None if layer.bias is None else layer.bias[self._classes]
        logits = F.linear(features[rows], layer.weight[self._classes], bias)
        targets = torch.searchsorted(self._classes, strategy.mb_y[rows])
        self.alignment.step_(strategy._criterion(logits, targets))

    def _own(self, strategy: Any) -> Tensor:
        """Which samples (B,) are of the experience; a replay plugin mixes in others."""
        assert self._classes is not None
        own = torch.isin(strategy.mb_y, self._classes)
        task_labels = task_labels_in(strategy.mbatch, strategy.experience.dataset)
        if task_labels is not None:  # class labels may restart in each task
            own &= task_labels == task_label_of(strategy.experience)
        return own

    @torch.no_grad()
    def _features(self, strategy: Any, layer: nn.Linear) -> Tensor:
        """What the head would be given of all samples, (B, D)."""
        assert self.head is not None
        seen: list[Tensor] = []
        model = self._model(strategy)
        if self.average is None:
            self._keep_buffers(model)
        hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        task_labels = task_labels_in(strategy.mbatch, strategy.experience.dataset)
        if isinstance(model.get_submodule(self.head), MultiHeadClassifier):
            # each sample as if it were of this task: else the layer would see some of them alone
            task_labels = torch.full_like(strategy.mb_y, task_label_of(strategy.experience))
        try:
            with eagerly(model):
                avalanche_forward(model, strategy.mb_x, task_labels)
        finally:
            hook.remove()
            if self._buffers is not None:
                self._buffers.restore()
        return seen[-1]

    def _keep_buffers(self, model: nn.Module) -> None:
        """A pass of its own model is the second one on a mini-batch, which no statistics count."""
        if self._buffers is None or not self._buffers.guards(model):
            self._buffers = BuffersGuard(model)
        else:
            self._buffers.keep()

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Advance the schedule."""
        self.alignment.end_epoch()

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Drop the optimizer and the copy of the buffers."""
        self.alignment.end()
        self._buffers = None


def _expect_untied(model: nn.Module, head: str) -> None:
    """Refuse a head whose weights are those of a layer below it, too, which would move with it."""
    own = {id(parameter) for parameter in model.get_submodule(head).parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in own and not f"{name}.".startswith(f"{head}." if head else ""):
            raise ValueError(
                f"Expected a head of its own weights, got '{head}', which shares one with "
                f"'{name}': give the head its own."
            )
