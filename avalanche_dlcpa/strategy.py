"""DLCPA as an Avalanche strategy: the three steps of Algorithm 1 in Avalanche's own loop."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.plugins.evaluation import default_evaluator
from torch import Tensor, nn
from torch.nn import CrossEntropyLoss
from torch.optim import Optimizer

from avalanche_dlcpa.alignment import ClassifierAlignment
from avalanche_dlcpa.arguments import (
    expect_average_source,
    expect_averageable,
    expect_batch_size,
    expect_bytes,
    expect_choice,
    expect_criterion,
    expect_epochs,
    expect_eval_batch_size,
    expect_evaluator,
    expect_optimizer,
    expect_precision,
    expect_queue,
    expect_values,
    expect_weight,
)
from avalanche_dlcpa.averaging import EMA_DECAY, STABLE_UPDATES, ParameterAverage
from avalanche_dlcpa.batch_norm import batch_norms, recalibrate_batch_norm_
from avalanche_dlcpa.buffers import BuffersGuard
from avalanche_dlcpa.classifier_scope import ClassifierScope, scope_of
from avalanche_dlcpa.cuda_graph import BACKENDS, StepGraph, report
from avalanche_dlcpa.divergence import all_finite, expect_finite_logits
from avalanche_dlcpa.dual_learner import DualLearner
from avalanche_dlcpa.experiences import (
    classes_of,
    expect_images_of_evaluation,
    some_samples,
    task_label_of,
    task_labels_in,
)
from avalanche_dlcpa.feeding import DEFAULT_CACHE_BYTES, cached
from avalanche_dlcpa.gaussian_plugin import GaussianClassifierPlugin
from avalanche_dlcpa.given_back import given_back_on_failure
from avalanche_dlcpa.graph_guards import on_host, reason_against, what_stays
from avalanche_dlcpa.learned_state import fingerprint_of, learned_state, load_learned_state_
from avalanche_dlcpa.learning_steps import LearningSteps
from avalanche_dlcpa.loss_watch import LossWatch
from avalanche_dlcpa.model_copy import expect_copyable
from avalanche_dlcpa.optimizer import (
    add_parameters_,
    adopt_parameters_,
    check_optimizer,
    expect_all_held,
    remove_parameters_,
    split_parameters,
    start_afresh_,
)
from avalanche_dlcpa.pickling import let_dill_find
from avalanche_dlcpa.plugin_guards import check_plugins
from avalanche_dlcpa.precision import autocast
from avalanche_dlcpa.resumption import ResumableTemplate
from avalanche_dlcpa.schedules import ExperienceSchedule, SchedulerFactory
from avalanche_dlcpa.seeded_loader import seeded
from avalanche_dlcpa.self_supervised import SelfSupervisedHead, make_head
from avalanche_dlcpa.self_supervised.head import expect_unbuilt, expect_wide, own_
from avalanche_dlcpa.stable_file import checksum_of_tensors
from avalanche_dlcpa.stable_loading import (
    expect_trained,
    load_classifiers_,
    load_features_,
    load_stable,
)
from avalanche_dlcpa.stable_model import tensors_of
from avalanche_dlcpa.training_guards import (
    AtLeastTwo,
    evaluate_at_end_,
    expect_mini_batch,
    expect_two_samples,
    expect_whole_experience,
    refuse_distributed,
    warn_of_one_class,
)
from avalanche_dlcpa.views import PaperViews, checked_views, own_views

Views = Callable[[Tensor], Sequence[Tensor]]


class DLCPAStrategy(ResumableTemplate):
    """Dual learner with cumulative parameter averaging, exemplar-free.

    Stands where ``EWC(...)`` stood: `train` and `eval` are Avalanche's, `resume` lets a killed run
    go on, ``strategy.model.export`` writes the stable learner and `from_stable` learns on from it.
    Takes Avalanche's keyword arguments, and those of the method:

    Args:
        model: Any classifier, whose last linear layer becomes the classifiers, or a `DualLearner`.
        optimizer: Of the plastic learner, such as ``SGD(model.parameters(), lr=0.005)``. The
            parameters of the self-supervised head join its first group that trains any, those of
            the model's head leave it. It starts each experience without state (momentum), as in
            the authors' runs.
        criterion: Of both cross-entropies. It gets logits (B, K) of the classes of the task alone,
            and the columns of the labels among them.
        ssl: Self-supervised loss: a name of `avalanche_dlcpa.self_supervised.HEADS`, a head, or
            None (ablation a).
        supervised_weight: The paper's lambda, the weight of the cross-entropy (Eq. 6).
        classifier_lr: Learning rate of the classifiers' own SGD.
        scheduler: Makes a schedule for ``optimizer``, anew in each experience and stepped once an
            epoch, such as ``lambda optimizer: MultiStepLR(optimizer, [99])``.
        classifier_scheduler: The same for the classifiers' optimizer.
        views: Mini-batch (B, ...) -> two views like it. Default: `PaperViews`, of which each
            strategy has its own copy, and with ``ssl=None`` the mini-batch itself.
        head: Name of the model's last linear layer; default: see `find_head`.
        average_source: What is averaged: ``"plastic"`` (the paper) or the head's ``"momentum"``
            encoder (the authors' runs with MoCoV2 and BYOL).
        bn_statistics: Batch norm of the stable learner at evaluation, see `DualLearner`.
        stable_update: ``"cumulative"``, ``"ema"`` (ablation c) or ``"copy"`` (ablation d).
        ema_decay: Of ``"ema"``, an iteration: 0.999, the paper's, looks back some 1,000, which is
            a small part of a task of its length.
        plastic_classifier: What guides the plastic learner: the ``"aligned"`` classifier of the
            task, or a ``"temporary"`` one of its own (ablation b).
        classifier_features: What the classifier is trained on: features of the ``"stable"``
            learner, or of the ``"plastic"`` one (ablation e).
        classifier: What predicts: the trained ``"linear"`` classifiers (the paper), or a
            ``"gaussian"`` one on the stable features, see `GaussianClassifierPlugin`. Training is
            the same.
        image_cache_bytes: Most memory for the images of the experience in training. They are read
            once, held on the device, and go through the stream's own transforms in batches, where
            these are recognised (see `avalanche_dlcpa.feeding`) and no plugin has put other data or
            another loader in place. Otherwise, and with 0, Avalanche's loader feeds the strategy.
        cuda_graph: Whether, on a CUDA device, iterations are replayed as one graph where plugins,
            optimizer and model allow it (see `avalanche_dlcpa.cuda_graph`); a log line says why
            not. Random choices of the model and the criterion must come from torch.
        precision: Of all passes through the learners and the momentum encoder: ``"float32"``, or
            ``"bf16"`` for torch's autocast to bfloat16. Parameters, averages, classifiers, losses
            and the statistics of batch norm are in float32 either way.
        train_mb_size: Mini-batch size in training; at least 2 with a self-supervised loss or batch
            norm, so Avalanche's default of 1 does not do for those.
        train_epochs: Epochs an experience.
        eval_mb_size: Mini-batch size at evaluation; None: that of training.
        device: Where to train.
        plugins: Avalanche's plugins; those that would do nothing or harm are refused.
        evaluator: Metrics and loggers; None for none.
        eval_every: See Avalanche's `SupervisedTemplate`.
        peval_mode: See Avalanche's `SupervisedTemplate`.

    Attributes:
        model: The `DualLearner`; in evaluation mode it answers with the stable learner.
        ssl: The self-supervised head, or None.
        model_suits: Whether a first pass was watched, and nothing found, see `watch_next_pass_`.
        copy_suits: The same of a copy, see `expect_copyable`.

    Raises:
        ValueError: Arguments that do not fit, see the message; in training, an experience or a
            model that does not.
        TypeError: Arguments that are of another kind than what is expected, see the message.
        NonFiniteLossError: In training and at evaluation, see there.
        ImportError: solo-learn is missing; the message holds the command that installs it.

    Source: the paper's Section "Methods" and Algorithm 1.

    Example:
        ``examples/drop_in_for_ewc.py``.
    """

    model: DualLearner
    model_suits: bool = False
    copy_suits: bool = False

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Callable[[Tensor, Tensor], Tensor] = CrossEntropyLoss(),  # noqa: B008
        ssl: str | SelfSupervisedHead | None = "mocov2",
        supervised_weight: float = 10.0,
        classifier_lr: float = 0.2,
        scheduler: SchedulerFactory | None = None,
        classifier_scheduler: SchedulerFactory | None = None,
        views: Views | None = None,
        head: str | None = None,
        average_source: str = "plastic",
        bn_statistics: str | None = None,
        stable_update: str = "cumulative",
        ema_decay: float = EMA_DECAY,
        plastic_classifier: str = "aligned",
        classifier_features: str = "stable",
        classifier: str = "linear",
        image_cache_bytes: float = DEFAULT_CACHE_BYTES,
        cuda_graph: bool = True,
        precision: str = "float32",
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
        expect_choice("peval_mode", peval_mode, ("experience", "epoch", "iteration"))
        expect_choice("plastic_classifier", plastic_classifier, ("aligned", "temporary"))
        expect_choice("stable_update", stable_update, STABLE_UPDATES)
        expect_choice("classifier_features", classifier_features, ("stable", "plastic"))
        expect_choice("classifier", classifier, ("linear", "gaussian"))
        expect_precision(precision, model)
        expect_values(model)
        expect_averageable(model)
        expect_weight("supervised_weight", supervised_weight)
        expect_bytes(image_cache_bytes)
        expect_epochs(train_epochs)
        expect_criterion(criterion)
        expect_evaluator(evaluator)
        expect_optimizer(optimizer)
        if not (views is None or callable(views)):
            raise TypeError(f"Expected `views` to be a function, got {type(views).__name__}.")
        self.ssl = make_head(ssl)
        if self.ssl is not None:
            expect_unbuilt(self.ssl)
        expect_average_source(average_source, self.ssl)
        self._needs_two = self.ssl is not None or bool(batch_norms(model))
        expect_batch_size(train_mb_size, self.ssl, self._needs_two)
        statistics = getattr(model, "bn_statistics", bn_statistics)
        expect_eval_batch_size(eval_mb_size)
        if statistics == "batch" and (train_mb_size if eval_mb_size is None else eval_mb_size) < 2:
            raise ValueError(
                "Expected `eval_mb_size` to be at least 2 with bn_statistics='batch', "
                f"got {eval_mb_size}."
            )
        average = functools.partial(ParameterAverage, update=stable_update, ema_decay=ema_decay)
        average([])  # refuses what does not fit
        self._schedule = ExperienceSchedule(scheduler, name="scheduler")
        self._alignment = ClassifierAlignment(
            classifier_lr,
            classifier_scheduler,
            lr_name="classifier_lr",
            scheduler_name="classifier_scheduler",
        )
        device = torch.device(device)
        parameters = split_parameters(model, head)
        check_optimizer(optimizer, parameters, self.ssl)
        check_plugins([*(plugins or ()), criterion], optimizer, eval_every)
        if self.ssl is not None and self.ssl.has_momentum_encoder:
            expect_wide(model)

        # All is checked; from here on the user's model and optimizer are changed.
        with given_back_on_failure(model, optimizer):
            dual = _as_dual_learner(model, head, bn_statistics)
            if self.ssl is not None:
                self.ssl.build(dual.plastic, dual.num_features)
                self.ssl.to(next(dual.plastic.parameters()).dtype)
            adopt_parameters_(optimizer, parameters, self.ssl)
            if classifier == "gaussian":
                plugins = [*(plugins or ()), GaussianClassifierPlugin()]
            super().__init__(
                model=dual,
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
        self.supervised_weight = supervised_weight
        self.views = PaperViews() if views is None and self.ssl is not None else own_views(views)
        self.plastic_classifier = plastic_classifier
        self.classifier_features = classifier_features
        self.image_cache_bytes = image_cache_bytes
        self.cuda_graph = cuda_graph
        self.precision = precision
        self._average_source = average_source
        self._average = average(list(dual.stable.parameters()))
        self._at_least_two = AtLeastTwo()
        self._now: LearningSteps | None = None
        self._graph: StepGraph | None = None
        self._graph_loss = torch.empty(0)
        self._own_loader: Any = None
        self._own_dataset: Any = None
        self._from_stable: str | None = None
        if self.ssl is not None:
            own_(self.ssl)

    @classmethod
    def from_stable(
        cls,
        path: str | os.PathLike[str],
        *,
        model: nn.Module,
        optimizer: Optimizer,
        **arguments: Any,
    ) -> DLCPAStrategy:
        """A strategy that goes on learning from a file of `DualLearner.export`.

        Old classes have their classifiers, which stay as they are. The average goes on counting:
        with t experiences in the file, the next makes the stable learner (Theta + t Phi) / (t + 1).
        The plastic learner is not in the file; it starts from the stable one. Heads and optimizers
        start anew, and classifiers of new classes as ever, from the rows of the given model's head.

        Args:
            path: The file. Loading runs no code from it.
            model: Built as the one that was trained, with any weights and any number of classes.
                It becomes the plastic learner, with the weights of the file.
            optimizer: Of that model, such as ``SGD(model.parameters(), lr=0.005)``.
            arguments: All others of the constructor but ``head``, which is in the file; a Gaussian
                classifier is refused, as the statistics of old classes are not in the file.

        Raises:
            ValueError: See the constructor and `load_stable`; ``model`` may have got the weights.
            OSError: There is no such file, or it cannot be read.

        Example::

            model = resnet18(num_classes=10)
            strategy = DLCPAStrategy.from_stable(
                "model.safetensors", model=model, optimizer=SGD(model.parameters(), lr=0.005)
            )
        """
        loaded, info = load_stable(path, model)
        expect_trained(info, arguments)
        load_features_(model, loaded, info.head)
        strategy = cls(model=model, optimizer=optimizer, head=info.head, **arguments)
        load_classifiers_(strategy.model, loaded, info)
        strategy._from_stable = checksum_of_tensors(tensors_of(loaded))
        return strategy

    # Start of an experience ---------------------------------------------------------------------

    def _before_training_exp(self, **kwargs: Any) -> None:
        self._forget_experience()  # of one that an exception broke off
        self._check_experience()
        if self.ssl is not None:
            self.ssl.to(self.device).train()
            self.ssl.before_training_exp()
        if isinstance(self.views, PaperViews):
            dataset = self.experience.dataset
            self.views.fit(dataset, functools.partial(some_samples, dataset))
        super()._before_training_exp(**kwargs)
        expect_mini_batch(self)
        if not any(isinstance(plugin, GaussianClassifierPlugin) for plugin in self.plugins):
            self.model.gaussian = None  # of an earlier strategy: it will not know the new classes
        classes, task_label = classes_of(self.experience), task_label_of(self.experience)
        mixed = self._has_other_samples(classes, task_label)
        if mixed and getattr(self._criterion, "reduction", "mean") != "mean":
            raise ValueError(
                "Expected a criterion with reduction='mean' beside replayed samples, whose losses "
                f"are averaged task by task, got '{self._criterion.reduction}'."
            )
        if not mixed:
            warn_of_one_class(classes)
        scope = scope_of(self.model.classifiers, task_label, classes, mixed=mixed)
        self._now = LearningSteps(
            self,
            scope=scope,
            temporary=self._temporary_classifier(scope),
            watch=None if self.device.type == "cpu" else LossWatch(self.device),
        )
        self._average.begin(int(self.model.num_averaged))
        self.model.is_learning = True
        self._alignment.begin(p for layer in scope.layers for p in layer.parameters())
        self._schedule.begin(self.optimizer)
        self._begin_graph()
        self.dataloader: Any = self._fast_loader()
        if self._needs_two:
            self._at_least_two.loader = self.dataloader
            self.dataloader = self._at_least_two

    def _check_experience(self) -> None:
        why = "DLCPA counts every experience as a task of its average"
        expect_whole_experience(self.experience, why=why)
        classes_of(self.experience)  # refuses an experience without samples
        if self.model.bn_statistics == "recalibrated" and batch_norms(self.model.stable):
            expect_images_of_evaluation(self.experience, self.device)
        if self._needs_two:
            expect_two_samples(self.experience)

    def train_dataset_adaptation(self, **kwargs: Any) -> None:
        """Take the experience's dataset, and remember it: a plugin may put another in its place."""
        super().train_dataset_adaptation(**kwargs)
        self._own_dataset = self.adapted_dataset

    def make_train_dataloader(self, **kwargs: Any) -> None:
        """Make Avalanche's loader, and remember it: a plugin may put another in its place."""
        super().make_train_dataloader(**kwargs)
        self._own_loader = self.dataloader

    def _fast_loader(self) -> Any:
        """The loader of this experience, from memory if nobody but us has chosen its data."""
        loader = self.dataloader
        is_ours = loader is self._own_loader and self.adapted_dataset is self._own_dataset
        if is_ours and self.image_cache_bytes:
            loader = cached(loader, device=self.device, most_bytes=self.image_cache_bytes)
        return seeded(loader)

    def make_eval_dataloader(self, **kwargs: Any) -> None:
        """Make Avalanche's loader, with random transforms that do not depend on its workers."""
        super().make_eval_dataloader(**kwargs)
        self.dataloader = seeded(self.dataloader)

    def _has_other_samples(self, classes: list[int], task_label: int) -> bool:
        """Whether a plugin mixes samples of earlier tasks into the mini-batches (replay)."""
        expected = {"targets": set(classes), "targets_task_labels": {task_label}}
        for name, own in expected.items():
            present = getattr(self.adapted_dataset, name, own)
            if not (getattr(present, "uniques", None) or set(present)) <= own:
                return True
        loads_own = getattr(self.dataloader, "dataset", None) is self.adapted_dataset
        return not (loads_own or self.dataloader is self._own_loader)

    def check_model_and_optimizer(self, reset_optimizer_state: bool = True, **kwargs: Any) -> None:
        """Add the classifiers of new classes, and start the optimizer without state."""
        self.model = self.model_adaptation()
        self.make_optimizer(reset_optimizer_state=reset_optimizer_state)

    def make_optimizer(self, reset_optimizer_state: bool = False, **kwargs: Any) -> None:
        """Leave the parameters in the optimizer as they are: Theta and the self-supervised head.

        Avalanche's own would add every parameter of the model.
        """
        expect_all_held(self.optimizer, self.model.plastic, self.ssl)
        if reset_optimizer_state:
            start_afresh_(self.optimizer)

    def _temporary_classifier(self, scope: ClassifierScope) -> nn.Linear | None:
        """Ablation (b): a classifier that only guides the plastic learner, for one experience."""
        if self.plastic_classifier == "aligned":
            return None
        like = scope.layers[0].weight
        layer = nn.Linear(like.shape[1], len(scope.labels), device=like.device, dtype=like.dtype)
        add_parameters_(self.optimizer, list(layer.parameters()))
        return layer

    # One iteration ------------------------------------------------------------------------------

    def forward(self) -> Tensor:
        """Answer the mini-batch; in training, with step 1's self-supervised loss on two views.

        Returns:
            Logits (B, W) by class label; in training those of the first view.
        """
        if not self.is_training:
            with autocast(self.precision, self.device):
                return self.model(self.mb_x, self._task_labels())
        now = self._now
        assert now is not None
        expect_queue(self.ssl, len(self.mb_x))
        targets = now.scope.targets(self.mb_y, self._task_labels())
        graph_draws = self._graph is not None and self._graph_makes_views
        images = [self.mb_x] if graph_draws else self._make_views(self.mb_x)
        if not self.copy_suits:
            with autocast(self.precision, self.device):
                expect_copyable(self.model.plastic, images[0], owner=self)
        if self._graph is None:
            return now.learn_plastic(targets, images)
        output, self._graph_loss = self._graph(targets, *images)
        return output

    def _task_labels(self) -> Tensor | None:
        return task_labels_in(self.mbatch, self.experience.dataset)

    def _make_views(self, x: Tensor) -> Sequence[Tensor]:
        if self.views is None:
            return (x,)
        return checked_views(self.views(x), 1 if self.ssl is None else 2, len(x))

    def criterion(self) -> Tensor:
        """Eq. 6 in training, the plain criterion at evaluation."""
        if not self.is_training:
            return self._criterion(self.mb_output, self.mb_y.long())
        assert self._now is not None
        return self._now.plastic_loss() if self._graph is None else self._graph_loss

    def backward(self) -> None:
        """Backward pass of Eq. 6, unless the loss is not finite.

        Raises:
            NonFiniteLossError: With experience, epoch, iteration and the state that stands now; on
                other devices than a CPU it comes at the end of the epoch.
        """
        assert self._now is not None
        if self._graph is None:
            self._now.check_finite(self.loss, "loss")
            super().backward()

    def optimizer_step(self) -> None:
        """One step on the plastic learner and the self-supervised head."""
        if self._graph is None:
            super().optimizer_step()

    def _after_update(self, **kwargs: Any) -> None:
        assert self._now is not None
        if self._graph is None:
            self._now.update_stable()
        super()._after_update(**kwargs)

    def _parameters_to_average(self) -> Iterable[nn.Parameter]:
        if self._average_source == "plastic":
            return self.model.plastic.parameters()
        assert self.ssl is not None
        assert self.ssl.momentum_encoder is not None
        return self.ssl.momentum_encoder.parameters()

    def _after_training_iteration(self, **kwargs: Any) -> None:
        assert self._now is not None
        if self._graph is None:
            self._now.align_classifier()
        super()._after_training_iteration(**kwargs)

    def _before_training_epoch(self, **kwargs: Any) -> None:
        assert self._now is not None
        self._now.last_good.keep()
        if self.model.bn_statistics == "recalibrated":
            evaluate_at_end_(self, draws=False)
        super()._before_training_epoch(**kwargs)
        if self.clock.train_epoch_iterations == 0:  # else a checkpoint has told what is frozen
            self.model.freeze_as_plastic()
            if self.ssl is not None:
                self.ssl.freeze_as(self.model.plastic)
        self._expect_graph()
        if self._now.watch is not None:
            self._now.watch.begin(self.clock.train_epoch_iterations)

    def _after_training_epoch(self, **kwargs: Any) -> None:
        assert self._now is not None
        self._now.end_epoch()
        self._schedule.end_epoch()
        self._alignment.end_epoch()
        super()._after_training_epoch(**kwargs)

    # The same as one CUDA graph -----------------------------------------------------------------

    def _begin_graph(self) -> None:
        """Have whole iterations of this experience run from `forward`, where nobody would mind."""
        self._graph = None
        if not self.cuda_graph or self.device.type not in BACKENDS:
            return
        assert self._alignment.optimizer is not None
        self._graph = StepGraph(
            self._whole_iteration,
            fixed=what_stays(self, self._alignment.optimizer),
            on_host=on_host(self),
            backend=BACKENDS[self.device.type](self.device),
        )
        self._expect_graph()

    def _expect_graph(self) -> None:
        """Do without, where somebody would mind from now on."""
        if self._graph is None:
            return
        assert self._now is not None
        mixed = self._now.scope.groups is not None
        reason = reason_against(self, DLCPAStrategy, mixed=mixed)
        if reason is not None:
            self._graph = None
            report(reason)

    def _whole_iteration(self, targets: Tensor, *images: Tensor) -> tuple[Tensor, Tensor]:
        assert self._now is not None
        views = self._make_views(images[0]) if self._graph_makes_views else images
        return self._now.whole(targets, views)

    @property
    def _graph_makes_views(self) -> bool:
        """Whether views are known to draw all random numbers on the device."""
        return self.views is None or type(self.views) is PaperViews

    # End of an experience -----------------------------------------------------------------------

    def _after_training_exp(self, **kwargs: Any) -> None:
        # what a momentum encoder holds is no part of the model that plugins put back
        comes_back = self._average_source == "plastic"
        self._average.end(self._parameters_to_average(), comes_back=comes_back)
        self.model.num_averaged += 1
        self.model.is_learning = False
        if self.model.bn_statistics == "recalibrated":
            self._recalibrate()
        if self.ssl is not None:
            self.ssl.after_training_exp()
        self._alignment.end()
        self._schedule.end()
        self.optimizer.zero_grad(set_to_none=True)
        if self.dataloader is self._at_least_two:  # which plugins may still look at
            self.dataloader = self._at_least_two.loader
        self._forget_experience()
        super()._after_training_exp(**kwargs)

    def _recalibrate(self) -> None:
        running = BuffersGuard(self.model.stable)
        with autocast(self.precision, self.device):
            recalibrate_batch_norm_(
                self.model.stable,
                self.experience.dataset.eval(),
                batch_size=self.train_mb_size,
                device=self.device,
            )
        if not all_finite(b for layer in batch_norms(self.model.stable) for b in layer.buffers()):
            running.restore()
            warnings.warn(
                "Batch norm was not recalibrated, and keeps its running statistics: an image of "
                f"experience {self.experience.current_experience} gives NaN or infinity.",
                stacklevel=2,
            )

    def _before_eval_exp(self, **kwargs: Any) -> None:
        num_images = len(self.experience.dataset)
        if self.model.bn_statistics == "batch" and num_images % self.eval_mb_size == 1:
            raise ValueError(
                "Expected mini-batches of at least 2 images with bn_statistics='batch', got "
                f"{num_images} images in mini-batches of {self.eval_mb_size}, the last of 1: "
                "choose another `eval_mb_size`."
            )
        super()._before_eval_exp(**kwargs)

    def _after_eval_forward(self, **kwargs: Any) -> None:
        expect_finite_logits(self)
        super()._after_eval_forward(**kwargs)

    def _forget_experience(self) -> None:
        """Hold nothing of an experience: no sample, feature or loader of it stays reachable."""
        if self._now is not None:
            remove_parameters_(self.optimizer, self._now.temporary)
        self._graph, self._graph_loss = None, torch.empty(0)
        self._now = self._own_loader = self._own_dataset = self._at_least_two.loader = None

    # Checkpoints --------------------------------------------------------------------------------

    def _write(self, *args: Any, **kwargs: Any) -> None:
        if self._now is not None:
            self._now.raise_if_diverged()
        super()._write(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Be ready for Avalanche's `save_checkpoint`, which pickles the whole strategy.

        A copy has no graph, which cannot be copied, and goes on without.
        """
        let_dill_find(self.optimizer)
        return {**super().__getstate__(), "_graph": None}

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes, as tensors, numbers and strings in nested dicts."""
        return learned_state(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` told, between two experiences or amid the same one.

        A state from the middle of an experience leaves optimizer and schedules alone until that
        experience has been set up.
        """
        load_learned_state_(self, state)

    def fingerprint(self) -> dict[str, Any]:
        """What a run and its checkpoint must have in common, as plain data by name."""
        return fingerprint_of(self)


def _as_dual_learner(model: nn.Module, head: str | None, bn_statistics: str | None) -> DualLearner:
    if not isinstance(model, DualLearner):
        return DualLearner(model, head=head, bn_statistics=bn_statistics or "running")
    if head is not None or bn_statistics not in (None, model.bn_statistics):
        raise ValueError(
            "Expected a DualLearner to come without `head` and `bn_statistics`, got "
            f"head={head!r}, bn_statistics={bn_statistics!r}: give them to DualLearner(...)."
        )
    if model.is_learning:
        raise ValueError(
            "Expected a DualLearner between two experiences, got one whose last experience was "
            "broken off, and is half in its average: go on with the strategy that trained it, or "
            "from a checkpoint."
        )
    return model
