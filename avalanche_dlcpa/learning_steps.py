"""Algorithm 1: the three steps of an iteration, on the mini-batches of one experience.

Plastic learning (Eq. 6), stable updating (Eq. 8) and classifier alignment (Eq. 9), without
Avalanche's hooks, which `DLCPAStrategy` puts between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from avalanche_dlcpa.buffers import BuffersGuard
from avalanche_dlcpa.classifier_scope import ClassifierScope
from avalanche_dlcpa.divergence import LastGoodState, NonFiniteLossError, all_finite, not_finite
from avalanche_dlcpa.dual_learner import checked_features
from avalanche_dlcpa.loss_watch import LossWatch
from avalanche_dlcpa.model_head import tap_of
from avalanche_dlcpa.model_watch import watch_next_pass_
from avalanche_dlcpa.precision import autocast


class LearningSteps:
    """The steps, and what lives no longer than the training on an experience.

    Args:
        strategy: Whose learners, head, views and optimizers they are.
        scope: The classes among which the samples compete.
        temporary: The additional classifier of ablation (b).
        watch: Looks at losses where nobody waits for them; None: each is looked at at once.

    Attributes:
        last_good: All that training changes, as it was at the start of the present epoch.
        views: Views that enter the cross-entropies, one after the other, (V * B, ...).
        targets: Their columns in the scope, (V * B,).
        logits: Their logits on the plastic learner's features, (V * B, K).
        ssl_loss: L_ssl of the mini-batch.
    """

    views: Tensor
    targets: Tensor
    logits: Tensor
    ssl_loss: Tensor | float

    def __init__(
        self,
        strategy: Any,
        *,
        scope: ClassifierScope,
        temporary: nn.Linear | None,
        watch: LossWatch | None,
    ):
        self.strategy = strategy
        self.scope = scope
        self.temporary = temporary
        self.watch = watch
        model = strategy.model
        trained = (model.plastic, model.stable, *scope.layers, strategy.ssl, strategy._criterion)
        modules = [part for part in trained if isinstance(part, nn.Module)]
        self.last_good = LastGoodState(strategy.optimizer, *modules)
        self._buffers = None if watch is not None else BuffersGuard(*modules)
        of_optimizers = (model.plastic, *scope.layers, strategy.ssl, temporary)
        self._updated = [part for part in of_optimizers if isinstance(part, nn.Module)]
        self._forget_batch()

    def whole(self, targets: Tensor, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """All three steps; returns what `learn_plastic` does and the loss, without gradients."""
        strategy = self.strategy
        strategy.optimizer.zero_grad()
        output = self.learn_plastic(targets, views).detach()
        loss = self.plastic_loss()
        self.check_finite(loss, "loss")
        loss.backward()
        strategy.optimizer.step()
        strategy.optimizer.zero_grad()
        self.update_stable()
        self.align_classifier()
        self._forget_batch()
        return output, loss.detach()

    def _forget_batch(self) -> None:
        """Hold nothing of the mini-batch, its features and their graph of gradients."""
        self.views = self.targets = self.logits = torch.empty(0)
        self.ssl_loss = 0.0

    def learn_plastic(self, targets: Tensor, views: Sequence[Tensor]) -> Tensor:
        """Step 1, forward pass: L_ssl and the logits of Eq. 6.

        Args:
            targets: Columns (B,) of the labels in the scope.
            views: Of the mini-batch, (B, ...) each; one where there is no head.

        Returns:
            Logits (B, W) of the first view by class label.
        """
        strategy, model = self.strategy, self.strategy.model
        if not strategy.model_suits:
            watch_next_pass_(model.plastic, tap_of(model.plastic), strategy, at_evaluation=True)
        if self._buffers is not None:
            self._buffers.keep()
        features: Sequence[Tensor]
        with autocast(strategy.precision, strategy.device):
            if strategy.ssl is None:
                self.ssl_loss, features = 0.0, (model.plastic(views[0]),)
            else:
                self.ssl_loss, features = strategy.ssl(model.plastic, *views)
        together = torch.cat([checked_features(f, model.num_features) for f in features])
        self.views = views[0] if len(features) == 1 else torch.cat(list(views[: len(features)]))
        self.targets = targets.repeat(len(features))
        if self.temporary is not None:
            self.logits = self.temporary(together.to(self.temporary.weight.dtype))
        else:
            self.logits = self.scope.logits(together, frozen=True)
        first = self.logits[: len(targets)]
        return self.scope.by_label(first, targets, model.classifiers.num_outputs)

    def plastic_loss(self) -> Tensor:
        """The loss of Eq. 6, a scalar."""
        cross_entropy = self.scope.loss(self.strategy._criterion, self.logits, self.targets)
        return self.ssl_loss + self.strategy.supervised_weight * cross_entropy

    def update_stable(self) -> None:
        """Step 2: the stable learner becomes the mean that includes the step just taken."""
        strategy = self.strategy
        if strategy.ssl is not None:
            strategy.ssl.after_update(strategy.model.plastic)
        strategy._average.update_(strategy._parameters_to_average())

    def align_classifier(self) -> None:
        """Step 3: one step of the classifier on the stable learner's features of the same views."""
        strategy, model = self.strategy, self.strategy.model
        with torch.no_grad(), autocast(strategy.precision, strategy.device):
            features = model.stable(self.views)  # also keeps its batch norm statistics up
            if strategy.classifier_features == "plastic":
                features = model.plastic(self.views)
        logits = self.scope.logits(features, frozen=False)
        loss = self.scope.loss(strategy._criterion, logits, self.targets)
        self.check_finite(loss, "classifier loss")
        strategy._alignment.step_(loss)

    # Losses that are not finite -----------------------------------------------------------------

    def check_finite(self, loss: Tensor, name: str) -> None:
        """Stop at a loss that is not finite, or remember it for `raise_if_diverged`.

        Raises:
            NonFiniteLossError: With experience, epoch, iteration and the state that stands now.
        """
        if self.watch is not None:
            self.watch.note(loss, name)
            return
        value = float(loss.detach())
        if value - value == 0:
            return
        assert self._buffers is not None
        self._buffers.restore()
        words = self._words(name, value, self.strategy.clock.train_epoch_iterations)
        # A corrupt mini-batch, seen before the update, leaves a sound model; else it diverged.
        is_corrupt = name == "loss" and not all_finite([self.strategy.mb_x])
        if is_corrupt and all_finite(self.strategy.model.parameters()):
            raise NonFiniteLossError(f"{words} The model is as it was before that mini-batch.")
        self._go_back(words)

    def raise_if_diverged(self) -> None:
        """Look at the losses of this epoch where nobody has waited for them.

        Raises:
            NonFiniteLossError: As in `check_finite`.
        """
        failure = None if self.watch is None else self.watch.first_failure()
        if failure is not None:
            name, iteration = failure
            self._go_back(self._words(name, "NaN or infinity", iteration))

    def end_epoch(self) -> None:
        """Look at what the last updates of an epoch have left, which no loss after them would show.

        Raises:
            NonFiniteLossError: As in `check_finite`.
        """
        self.raise_if_diverged()
        if not all_finite(p for module in self._updated for p in module.parameters()):
            iteration = self.strategy.clock.train_epoch_iterations - 1
            self._go_back(self._words("update", "NaN or infinity", iteration))

    def _go_back(self, words: str) -> NoReturn:
        self.last_good.restore()
        if self.watch is not None:
            self.watch.begin(self.strategy.clock.train_epoch_iterations)
        state = "Everything is back at the start of that epoch, or where it was resumed."
        raise NonFiniteLossError(f"{words} {state}")

    def _words(self, name: str, value: object, iteration: int) -> str:
        lower = "lower the learning rate or `supervised_weight`"
        at_samples = "look at the samples of that mini-batch, or "
        return not_finite(
            name,
            value,
            way_out=lower if name == "update" else at_samples + lower,
            experience=self.strategy.experience,
            epoch=self.strategy.clock.train_exp_epochs,
            iteration=iteration,
        )
