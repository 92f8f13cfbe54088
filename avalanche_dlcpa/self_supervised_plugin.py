"""Step 1, plastic learning: its self-supervised loss for any Avalanche strategy, as a plugin."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.templates.update_type import SGDUpdate
from torch import Tensor, nn
from torch.optim import Optimizer

from avalanche_dlcpa.arguments import expect_queue, expect_weight
from avalanche_dlcpa.dual_learner import DualLearner
from avalanche_dlcpa.experiences import some_samples
from avalanche_dlcpa.model_copy import computed_tensors, expect_copyable
from avalanche_dlcpa.model_head import detach_head, tap_of
from avalanche_dlcpa.model_watch import watch_next_pass_
from avalanche_dlcpa.self_supervised import SelfSupervisedHead, make_head
from avalanche_dlcpa.self_supervised.head import expect_unbuilt, own_
from avalanche_dlcpa.single_task_model import SingleTaskModel
from avalanche_dlcpa.training_guards import expect_one_strategy
from avalanche_dlcpa.views import PaperViews, checked_views, own_views


class SelfSupervisedLossPlugin(SupervisedPlugin):
    """Adds the self-supervised loss of DLCPA to the loss of any strategy.

    ``EWC(..., plugins=[SelfSupervisedLossPlugin("mocov2")])``: so a baseline is compared with DLCPA
    on the same loss. The first of two views of a mini-batch takes the place of its images; the loss
    becomes ``loss + weight * L_ssl``. With the default weight and cross-entropy that is Eq. 6 over
    lambda = 10, so that DLCPA's learning rate corresponds to ten times as much here.

    L_ssl looks at the strategy's model without its head, on the very same parameters and buffers.
    The parameters of the self-supervised head have an optimizer of their own: fresh in each
    experience, of the class of the strategy's and with the options of its first group, whose
    learning rate it follows. Other than in DLCPA, the first view passes the model once more for
    L_ssl, and it alone enters the supervised loss whatever the head. Samples that a plugin mixes
    into the mini-batch (`ReplayPlugin`) have views, too; those that a strategy adds by itself (DER)
    have none.

    Args:
        ssl: Self-supervised loss: a name of `avalanche_dlcpa.self_supervised.HEADS`, or a head.
        weight: Of L_ssl; 1 / lambda for Eq. 6.
        views: Mini-batch (B, ...) -> two views like it. Default: `PaperViews`, of which each plugin
            has its own copy.
        head: Name of the model's last linear layer; None: see `find_head`.

    Attributes:
        ssl: The self-supervised head.

    Raises:
        ValueError: Arguments, or at training a strategy, that do not fit, see the message.
        TypeError: ``ssl`` is neither a name nor a head, or ``views`` no function.
        ImportError: solo-learn is missing; the message holds the command that installs it.

    Source: the paper's Eq. 6.
    """

    model_suits: bool = False
    copy_suits: bool = False

    def __init__(
        self,
        ssl: str | SelfSupervisedHead,
        *,
        weight: float = 0.1,
        views: Callable[[Tensor], Sequence[Tensor]] | None = None,
        head: str | None = None,
    ):
        super().__init__()
        expect_weight("weight", weight)
        if not (views is None or callable(views)):
            raise TypeError(f"Expected `views` to be a function, got {type(views).__name__}.")
        made = make_head(ssl)
        if made is None:
            raise ValueError(
                "Expected `ssl` to be a name or a SelfSupervisedHead, got None: leave the plugin "
                "out for no self-supervised loss."
            )
        expect_unbuilt(made)
        self.ssl = made
        self.weight = weight
        self.views = PaperViews() if views is None else own_views(views)
        self.head = head
        self._clock: Any = None
        self._shapes: list[torch.Size] | None = None
        self._features: _SharedFeatures | None = None
        self._optimizer: Optimizer | None = None
        self._views: Sequence[Tensor] | None = None

    def before_training(self, strategy: Any, **kwargs: Any) -> None:
        """Refuse a strategy that does not suit."""
        if not isinstance(strategy, SGDUpdate) or strategy.optimizer is None:
            raise ValueError(
                "Expected a strategy that takes one step of an optimizer for one loss in each "
                f"iteration, got {type(strategy).__name__}: nothing could be added to its loss."
            )
        if isinstance(strategy.model, DualLearner):
            raise ValueError(
                "Expected a strategy without a self-supervised loss of its own, got one on a "
                "DualLearner: use the argument `ssl` of DLCPAStrategy."
            )
        why = "its head belongs to the model of the first"
        expect_one_strategy(self, self._clock, strategy, why=why)
        self._clock = strategy.clock

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Take the model as it now is, and start head, optimizer and views."""
        features = self._features = _SharedFeatures(strategy.model, self.head)
        self._build(features)
        self.ssl.to(strategy.device, next(strategy.model.parameters()).dtype).train()
        self.ssl.before_training_exp()
        self._optimizer = _optimizer_like(strategy.optimizer, self.ssl)
        if isinstance(self.views, PaperViews):
            dataset = strategy.experience.dataset
            self.views.fit(dataset, functools.partial(some_samples, dataset))

    def _build(self, features: _SharedFeatures) -> None:
        """Build the head before the first experience; later the model must be of the same form."""
        shapes = [parameter.shape for parameter in features.module.parameters()]
        if self._shapes is None:
            self.ssl.build(features.module, features.num_features)
            own_(self.ssl)
            self._shapes = shapes
        elif shapes != self._shapes:
            raise ValueError(
                f"Expected a model that does not change below its head, got {len(shapes)} "
                f"parameters instead of {len(self._shapes)} or other shapes: a self-supervised "
                "head cannot follow a network that grows."
            )

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Make two views, and put the first in the place of the mini-batch's images."""
        _expect_batch(self.ssl, len(strategy.mb_x))
        self._views = checked_views(self.views(strategy.mb_x), 2, len(strategy.mb_x))
        strategy.mbatch[0] = self._views[0]

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the self-supervised loss of the two views."""
        assert self._views is not None
        views, self._views = self._views, None
        if self._features is None or self._features.model is not strategy.model:
            self._features = _SharedFeatures(strategy.model, self.head)
        self._features.follow_modes_()
        self.ssl.freeze_as(self._features.module)
        if self.ssl.has_momentum_encoder:
            expect_copyable(self._features.module, views[0], owner=self)
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        if not self.model_suits:
            module = self._features.module
            watch_next_pass_(module, tap_of(module), self)
        loss, _ = self.ssl(self._features.module, *views)
        strategy.loss = strategy.loss + self.weight * loss

    def after_update(self, strategy: Any, **kwargs: Any) -> None:
        """One step of the head's own optimizer; momentum copies and queues follow."""
        assert self._features is not None
        if self._optimizer is not None:
            self._optimizer.param_groups[0].update(_options_of(strategy.optimizer))
            self._optimizer.step()
        self.ssl.after_update(self._features.module)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Forget everything that samples left behind."""
        self.ssl.after_training_exp()
        self.ssl.zero_grad(set_to_none=True)
        self._features = self._optimizer = self._views = None


class _SharedFeatures:
    """A model without its head, on the very parameters and buffers of the model.

    Attributes:
        model: The model, as it was given.
        module: Its features, (B, ...) -> (B, D).
        num_features: D.
    """

    def __init__(self, model: nn.Module, head: str | None):
        tensors = [*model.parameters(), *model.buffers(), *computed_tensors(model)]
        shared = {id(tensor): tensor for tensor in tensors}
        twin = copy.deepcopy(model, memo=shared)
        self._twins = list(zip(model.modules(), twin.modules(), strict=True))
        self.model = model
        if isinstance(twin, SingleTaskModel):  # its head is taken out already
            self.module, self.num_features = twin.extractor, twin.num_features
        else:
            self.module, start = detach_head(twin, head)
            self.num_features = start.in_features

    def follow_modes_(self) -> None:
        """Take over the training mode of each module, as some may be frozen."""
        for module, twin in self._twins:
            twin.training = module.training


def _expect_batch(ssl: SelfSupervisedHead, batch_size: int) -> None:
    if batch_size < 2:
        raise ValueError(
            "Expected mini-batches of at least 2 samples for a self-supervised loss, got 1: choose "
            "another `train_mb_size`, or leave the last out, strategy.train(..., drop_last=True)."
        )
    expect_queue(ssl, batch_size)


def _options_of(optimizer: Optimizer) -> dict[str, Any]:
    """Learning rate and all other options of the first group."""
    return {name: optimizer.param_groups[0][name] for name in optimizer.defaults}


def _optimizer_like(optimizer: Optimizer, ssl: SelfSupervisedHead) -> Optimizer | None:
    """A fresh one of the same class and options, for what the other does not train of a head."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    parameters = [p for p in ssl.parameters() if p.requires_grad and id(p) not in held]
    if not parameters:
        return None
    known = inspect.signature(type(optimizer)).parameters  # AdamW has options that it does not take
    options = {name: value for name, value in _options_of(optimizer).items() if name in known}
    try:
        return type(optimizer)(parameters, **options)
    except TypeError as error:
        raise ValueError(
            "Expected an optimizer of a class that is made from parameters and its options, for "
            f"the head to have one like it, got {type(optimizer).__name__}: {error}"
        ) from error
