"""STL, STL-me and STL-me with classifier finetuning: the paper's analysis, as one strategy.

Source: the paper's Section "Analysis", Table 1, and the appendix "Single Task Learning" with its
algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.nn import CrossEntropyLoss
from torch.optim import Optimizer

from avalanche_dlcpa.arguments import (
    expect_averageable,
    expect_batch_size,
    expect_criterion,
    expect_epochs,
    expect_eval_batch_size,
    expect_evaluator,
    expect_optimizer,
    expect_values,
)
from avalanche_dlcpa.averaging import ParameterAverage
from avalanche_dlcpa.batch_norm import batch_norms, recalibrate_batch_norm_
from avalanche_dlcpa.buffers import copy_buffers_
from avalanche_dlcpa.classifier_finetuning import ClassifierFinetuning
from avalanche_dlcpa.classifier_scope import ClassifierScope
from avalanche_dlcpa.divergence import (
    LastGoodState,
    NonFiniteLossError,
    all_finite,
    expect_finite_logits,
    not_finite,
)
from avalanche_dlcpa.experiences import classes_of, expect_images_of_evaluation, task_labels_in
from avalanche_dlcpa.given_back import given_back_on_failure
from avalanche_dlcpa.model_copy import expect_copyable, follow_modes_
from avalanche_dlcpa.model_head import find_head, tap_of
from avalanche_dlcpa.model_watch import watch_next_pass_
from avalanche_dlcpa.optimizer import (
    adopt_parameters_,
    check_optimizer,
    expect_all_held,
    remove_parameters_,
    split_parameters,
    start_afresh_,
)
from avalanche_dlcpa.pickling import let_dill_find
from avalanche_dlcpa.random_states import preserved_random_states
from avalanche_dlcpa.single_task_model import SingleTaskModel
from avalanche_dlcpa.training_guards import (
    AtLeastTwo,
    evaluate_at_end_,
    expect_mini_batch,
    expect_two_samples,
    expect_whole_experience,
    refuse_distributed,
    warn_of_one_class,
)


class SingleTaskStrategy(SupervisedTemplate):
    """Single task learning (STL): plain supervised learning of one network a task.

    The extractor Theta goes on from task to task, the classifier Gamma_t of each task is new, and
    the user's optimizer trains both together, by a cross-entropy over the classes of the task. What
    predicts makes the paper's three variants:

    - STL, ``predict_with="own"``: the task's own extractor. Nothing of a task is ever forgotten, at
      the price of memory for T extractors: an upper bound for Task-IL. Without task labels the
      logits of all networks stand side by side, and Class-IL is their plain argmax.
    - STL-me, ``predict_with="mean"``: one extractor, the mean of Theta_1 .. Theta_t, whatever T.
      Averaged running statistics of batch norm would not be those of the averaged weights; they are
      computed anew on the images of the experience at its end.
    - STL-me with classifier finetuning, ``finetune_epochs`` above 0: after each experience every
      classifier so far is finetuned on the mean extractor's features of its own task. **This is not
      exemplar-free**: the strategy keeps the training data of all experiences. It tells what
      averaging could reach, an analysis and upper bound of the paper, and no method for use.

    With the same seed the three train the very same extractors and classifiers.

    Args:
        model: Any classifier, whose last linear layer becomes the classifiers.
        optimizer: Of the extractor and of the current task's classifier, such as
            ``SGD(model.parameters(), lr=0.01)``. The classifier takes the place of the model's
            head, its weight and bias in the parameter groups of those or else the first. It starts
            each experience without state (momentum).
        criterion: Cross-entropy. In training it gets logits (B, K) of the classes of the task
            alone, and the columns of the labels among them.
        predict_with: ``"own"`` extractor or ``"mean"`` extractor at evaluation. In the middle of an
            experience both include the extractor as it is then.
        finetune_epochs: Epochs of classifier finetuning after each experience; only with
            ``predict_with="mean"``.
        finetune_lr: Its learning rate, of plain SGD on mini-batches of ``train_mb_size`` features.
        head: Name of the model's last linear layer; None: see `find_head`.
        train_mb_size: Mini-batch size in training; at least 2 with batch norm.
        train_epochs: Epochs an experience.
        eval_mb_size: Mini-batch size at evaluation, and of features for finetuning; None: that of
            training.
        device: Where to train.
        plugins: Avalanche's plugins.
        evaluator: Metrics and loggers.
        eval_every: See Avalanche's `SupervisedTemplate`.
        peval_mode: See Avalanche's `SupervisedTemplate`.

    Attributes:
        model: The `SingleTaskModel`.

    Raises:
        ValueError: Arguments that do not fit, see the message; in training: classes that had been
            trained before, or samples of other experiences in a mini-batch (replay).
        NonFiniteLossError: In training, where it diverged: at the end of that epoch; at evaluation,
            where logits are not finite.

    Source: the paper's Eq. 1 (STL), Eq. 2 (STL-me) and Eq. 3 (finetuning), and Table 1.
    """

    model: SingleTaskModel
    model_suits: bool = False
    copy_suits: bool = False

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Callable[[Tensor, Tensor], Tensor] = CrossEntropyLoss(),  # noqa: B008
        predict_with: str = "own",
        finetune_epochs: int = 0,
        finetune_lr: float = 0.2,
        head: str | None = None,
        train_mb_size: int = 1,
        train_epochs: int = 1,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[SupervisedPlugin] | None = None,
        evaluator: EvaluationPlugin | Callable[[], EvaluationPlugin] = default_evaluator,
        eval_every: int = -1,
        peval_mode: str = "epoch",
    ):
        refuse_distributed()
        plugins = None if plugins is None else list(plugins)
        expect_epochs(train_epochs)
        expect_eval_batch_size(eval_mb_size)
        expect_criterion(criterion)
        expect_evaluator(evaluator)
        expect_optimizer(optimizer)
        expect_values(model)
        if predict_with == "mean":
            expect_averageable(model)
        self._needs_two = bool(batch_norms(model))
        expect_batch_size(train_mb_size, None, self._needs_two)
        self._finetuning = ClassifierFinetuning(finetune_epochs, finetune_lr)
        if finetune_epochs and predict_with != "mean":
            raise ValueError(
                "Expected predict_with='mean' with `finetune_epochs` above 0, got "
                f"'{predict_with}': an extractor of its own already fits its classifier."
            )
        parameters = split_parameters(model, head)
        check_optimizer(optimizer, parameters, None)
        self._groups = _groups_of(optimizer, model.get_submodule(find_head(model, head)))
        with given_back_on_failure(model, optimizer):
            network = SingleTaskModel(model, head=head, predict_with=predict_with)
            adopt_parameters_(optimizer, parameters, None)
            super().__init__(
                model=network,
                optimizer=optimizer,
                criterion=criterion,
                train_mb_size=train_mb_size,
                train_epochs=train_epochs,
                eval_mb_size=eval_mb_size,
                device=device,
                plugins=plugins,
                evaluator=evaluator,
                eval_every=eval_every,
                peval_mode=peval_mode,
            )
        self._average: ParameterAverage | None = None
        if network.mean is not None:
            self._average = ParameterAverage(list(network.mean.parameters()))
        self._at_least_two = AtLeastTwo()
        self._last_good: LastGoodState | None = None

    # Training -----------------------------------------------------------------------------------

    def _before_training_exp(self, **kwargs: Any) -> None:
        why = "single task learning takes every experience for a task"
        expect_whole_experience(self.experience, why=why)
        warn_of_one_class(classes_of(self.experience))
        if self._needs_two:
            expect_two_samples(self.experience)
        if self.model.mean is not None and (self._needs_two or self._finetuning.epochs):
            expect_images_of_evaluation(self.experience, self.device)
        super()._before_training_exp(**kwargs)
        expect_mini_batch(self)
        self._last_good = LastGoodState(self.optimizer, self.model.extractor, self.model.classifier)
        if self._needs_two:
            self._at_least_two.loader = self.dataloader
            self.dataloader: Any = self._at_least_two

    def _before_training_epoch(self, **kwargs: Any) -> None:
        assert self._last_good is not None
        self._last_good.keep()
        if self.model.mean is not None:
            evaluate_at_end_(self, draws=False)
        super()._before_training_epoch(**kwargs)

    def _after_training_epoch(self, **kwargs: Any) -> None:
        assert self._last_good is not None
        if not all_finite(
            [*self.model.extractor.parameters(), *self.model.classifier.parameters()]
        ):
            self._last_good.restore()
            words = not_finite(
                "update",
                "NaN or infinity",
                way_out="lower the learning rate",
                experience=self.experience,
                epoch=self.clock.train_exp_epochs,
                iteration=self.clock.train_epoch_iterations - 1,
            )
            raise NonFiniteLossError(f"{words} Everything is back at the start of that epoch.")
        super()._after_training_epoch(**kwargs)

    def check_model_and_optimizer(self, reset_optimizer_state: bool = True, **kwargs: Any) -> None:
        """Begin the task of the experience, and start the optimizer without state."""
        self.model = self.model_adaptation()
        if self._average is not None:
            self._average.begin(int(self.model.num_averaged))
        self.make_optimizer(reset_optimizer_state=reset_optimizer_state)

    def make_optimizer(self, reset_optimizer_state: bool = False, **kwargs: Any) -> None:
        """Put the current task's classifier into the optimizer, and take earlier ones out.

        Avalanche's own would add every parameter of the model.
        """
        expect_all_held(self.optimizer, self.model.extractor)
        remove_parameters_(self.optimizer, self.model.classifiers)
        for name, parameter in self.model.classifier.named_parameters():
            self.optimizer.param_groups[self._groups[name]]["params"].append(parameter)
        if reset_optimizer_state:
            start_afresh_(self.optimizer)

    def forward(self) -> Tensor:
        """Answer the mini-batch: logits (B, W) by class label."""
        if self.is_training:
            expect_copyable(self.model.extractor, self.mb_x, owner=self)
        if self.is_training and not self.model_suits:
            extractor = self.model.extractor
            watch_next_pass_(extractor, tap_of(extractor), self, at_evaluation=True)
        return self.model(self.mb_x, self._task_labels())

    def _task_labels(self) -> Tensor | None:
        return task_labels_in(self.mbatch, self.experience.dataset)

    def criterion(self) -> Tensor:
        """Cross-entropy over the classes of the task in training, over all at evaluation."""
        if not self.is_training:
            return super().criterion()
        scope = self.model.scope()
        targets = _targets_within(scope, self.mb_y, self._task_labels())
        return scope.loss(self._criterion, self.mb_output.index_select(1, scope.labels), targets)

    # End of an experience -----------------------------------------------------------------------

    def _after_training_exp(self, **kwargs: Any) -> None:
        self._stop_training = False  # who asked for it in the last epoch has had their will
        self.optimizer.zero_grad(set_to_none=True)
        if self.dataloader is self._at_least_two:  # which plugins may still look at
            self.dataloader = self._at_least_two.loader
        self._at_least_two.loader = self._last_good = None
        if self._average is not None:
            self._average.end(self.model.extractor.parameters())
        self.model.end_task()
        with preserved_random_states(self.device):  # Theta does not depend on what predicts
            self._fit_mean_extractor()
        super()._after_training_exp(**kwargs)

    def _fit_mean_extractor(self) -> None:
        """Make batch norm, and the classifiers if they shall be finetuned, fit the new mean."""
        if self.model.mean is None:
            return
        data = self.experience.dataset.eval()
        copy_buffers_(self.model.mean, self.model.extractor)
        follow_modes_(self.model.mean, self.model.extractor)
        recalibrate_batch_norm_(
            self.model.mean, data, batch_size=self.train_mb_size, device=self.device
        )
        if self._finetuning.epochs:
            self._finetuning.add(data, self.model.scope())
            self._finetuning.finetune_(
                self.model.mean,
                criterion=self._criterion,
                batch_size=self.train_mb_size,
                eval_batch_size=self.eval_mb_size,
            )

    # Evaluation ---------------------------------------------------------------------------------

    @torch.no_grad()
    def eval(self, exp_list: Any, **kwargs: Any) -> dict[str, Any]:
        """Evaluate; see Avalanche's `SupervisedTemplate`.

        Leaves training as it was, random states included, so that it does not depend on how often
        one evaluates.
        """
        with preserved_random_states(self.device):
            return super().eval(exp_list, **kwargs)

    def _before_eval(self, **kwargs: Any) -> None:
        """Bring the mean up to date where the evaluation is amid an experience."""
        if self.model.mean is not None and self.model.is_task_open:
            assert self._average is not None
            self._average.update_(self.model.extractor.parameters())
            copy_buffers_(self.model.mean, self.model.extractor)  # its own follow at the end
        super()._before_eval(**kwargs)

    def _after_eval_forward(self, **kwargs: Any) -> None:
        expect_finite_logits(self)
        super()._after_eval_forward(**kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Be ready for Avalanche's `save_checkpoint`, which pickles the whole strategy."""
        let_dill_find(self.optimizer)
        return self.__dict__


def _groups_of(optimizer: Optimizer, head: nn.Module) -> dict[str, int]:
    """The parameter groups that hold weight and bias of the head, 0 where none does."""
    held = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    groups = {"weight": 0, "bias": 0}
    for name, parameter in head.named_parameters():
        groups[name.rpartition(".")[2]] = held.get(id(parameter), 0)
    return groups


def _targets_within(scope: ClassifierScope, labels: Tensor, task_labels: Tensor | None) -> Tensor:
    """Columns (B,) of the labels (B,) of a mini-batch, all of the task that is in training.

    A GPU is not waited for: the loss of a label of another task is NaN there.
    """
    if labels.device.type != "cpu":
        return scope.targets(labels, task_labels)
    strange = ~torch.isin(labels, scope.labels)
    if task_labels is not None:
        strange |= task_labels != scope.task_label
    if strange.any():
        raise ValueError(
            "Expected mini-batches of the experience alone, got others' samples of classes "
            f"{labels[strange].unique().tolist()}: single task learning does without replay."
        )
    return scope.targets(labels, task_labels)
