"""Beyond the paper: a Gaussian classifier in the place of trained ones, as a plugin on `gaussian`.

For `DLCPAStrategy`, and for any other strategy.
"""

from __future__ import annotations

from typing import Any

import torch
from avalanche.models import MultiTaskModule, avalanche_forward
from avalanche.models.dynamic_modules import TrainEvalModel
from avalanche.models.packnet import PackNetModule
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor, nn

from avalanche_dlcpa.arguments import expect_prior
from avalanche_dlcpa.averaging_plugin import CumulativeParameterAveragingPlugin
from avalanche_dlcpa.class_statistics import ClassStatistics
from avalanche_dlcpa.compiled import eagerly, is_compiled
from avalanche_dlcpa.dual_learner import DualLearner
from avalanche_dlcpa.experiences import expect_images_of_evaluation, task_label_of, task_labels_in
from avalanche_dlcpa.frozen_extractor import FrozenExtractor, experience_statistics
from avalanche_dlcpa.gaussian import followed, linear_discriminants, shrinkage_of
from avalanche_dlcpa.layer_states import layer_states, set_layer_states_
from avalanche_dlcpa.model_copy import expect_copyable
from avalanche_dlcpa.model_head import find_head
from avalanche_dlcpa.model_watch import watch_answer_
from avalanche_dlcpa.random_states import preserved_random_states
from avalanche_dlcpa.task_classifiers import TaskClassifiers, frozen_classifiers
from avalanche_dlcpa.training_guards import evaluate_at_end_, expect_one_by_one, expect_one_strategy

# The best of 35 combinations on the validation split of real CIFAR-100 (DLCPA with MoCoV2, 10 tasks
# of 10 classes, D = 128, three seeds), on average over statistics of 5, 12, 45 and all 200 images a
# class: `python -m benchmarks.gaussian --validation --images-per-class ...`.
COVARIANCE_PRIOR = 8.0
MAP_PRIOR = 0.2


class GaussianClassifierPlugin(SupervisedPlugin):
    """Answers at evaluation with a Gaussian classifier on the model's features, exemplar-free.

    With `DLCPAStrategy` (which makes one for ``classifier="gaussian"``) on the features of the
    stable learner, with any other strategy on what the model's last linear layer is given. Training
    stays as it is, bit for bit. At the end of each experience one pass over its images, as
    evaluation sees them, gives the means of its classes and their covariance; those of earlier
    classes, all that is kept of them, follow the features by a map that is fitted on the features
    of the same images before and after the experience (`drift_map`). The classifier is that of
    `linear_discriminants`, folded into one linear layer: classes are equally likely whatever their
    numbers of images, and a class that comes back adds to its statistics.

    From the start of an experience to its end, before there are statistics of its classes, the
    trained classifiers answer, also after an experience that was broken off. Kept are D x D and
    K x D numbers; in training a copy of the feature extractor as it was before the experience, too.
    The mean of a class with a single image is the feature of that image. The pass reads the images
    by the stream's transforms for evaluation: what a plugin does to mini-batches it does not see.

    Together with a `CumulativeParameterAveragingPlugin`, which comes before it in the list, the
    features are those of the averaged model.

    Args:
        covariance_prior: Images for each dimension that stand against the covariance, see
            `shrinkage_of`; above 0. With ``math.inf`` the nearest class mean wins.
        map_prior: Images for each dimension that stand against the map, see `ridge_of`; above 0.
            ``math.inf`` moves all means by the difference of the mean features.
        head: Name of the last linear layer; None: see `find_head`. Not for `DLCPAStrategy`.

    Attributes:
        keys: The (task label, class label) of each class that it knows, in the order of learning.
        statistics: Their statistics, of the present features, on the CPU; None before the end of
            the first experience.

    Raises:
        ValueError: A prior out of range; in training: a strategy that does not suit, or features
            that are not finite.

    Example:
        ``EWC(..., plugins=[GaussianClassifierPlugin()])``
    """

    model_suits: bool = False
    copy_suits: bool = False

    def __init__(
        self,
        *,
        covariance_prior: float = COVARIANCE_PRIOR,
        map_prior: float = MAP_PRIOR,
        head: str | None = None,
    ):
        super().__init__()
        expect_prior(covariance_prior, "covariance_prior")
        expect_prior(map_prior, "map_prior")
        self.covariance_prior = float(covariance_prior)
        self.map_prior = float(map_prior)
        self.head = head
        self.keys: list[tuple[int, int]] = []
        self.statistics: ClassStatistics | None = None
        self._clock: Any = None
        self._classifier: TaskClassifiers | None = None  # of a model that is no DualLearner
        self._previous: FrozenExtractor | None = None
        self._hooks: list[Any] = []
        self._features: list[Tensor] = []

    # Training -----------------------------------------------------------------------------------

    def before_training(self, strategy: Any, **kwargs: Any) -> None:
        """Find the head, and refuse a strategy that does not suit."""
        self._stop_listening()
        why = "its statistics are of the first"
        expect_one_strategy(self, self._clock, strategy, why=why)
        _check_plugins(self, strategy.plugins)
        expect_one_by_one(strategy)
        if not isinstance(strategy.model, DualLearner):
            self.head = find_head(strategy.model, self.head)
            _check_features(strategy.model, self.head)
        elif strategy.model.bn_statistics == "batch":
            raise ValueError(
                "Expected bn_statistics 'running' or 'recalibrated' with a Gaussian classifier, "
                "got 'batch': the features of an image, and so the mean of a class, would depend "
                "on the other images of a batch."
            )
        has_learned = strategy.clock.train_exp_counter > 0
        if isinstance(strategy.model, DualLearner):
            has_learned = bool(strategy.model.num_averaged > 0)
        if has_learned and self.statistics is None:
            raise ValueError(
                "Expected a GaussianClassifierPlugin from the first experience on, got one after "
                "others: it would not know their classes, whose statistics nobody kept."
            )
        self._clock = strategy.clock

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Keep the feature extractor as it is before the experience."""
        task_label_of(strategy.experience)  # refuses several now, and not after training
        expect_images_of_evaluation(strategy.experience, strategy.device)
        if self.statistics is not None and self._previous is None:  # none was broken off
            self._previous = self._extractor(strategy)
        self._answer_with(None, strategy)

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Have the end of the experience evaluated, where there will be statistics of it."""
        evaluate_at_end_(strategy, draws=not isinstance(strategy.model, DualLearner))

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Look once whether the features are what the head is given, and nothing after it."""
        if isinstance(strategy.model, DualLearner):
            return
        assert self.head is not None
        if not self.model_suits:
            watch_answer_(strategy.model, self.head, self, at_evaluation=True)
        task_labels = task_labels_in(strategy.mbatch, strategy.experience.dataset)
        expect_copyable(strategy.model, strategy.mb_x, owner=self, task_labels=task_labels)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Take the statistics of the experience, move those of earlier ones, and solve."""
        extractors = [self._extractor(strategy)]
        if self._previous is not None:
            extractors.insert(0, self._previous)
        with preserved_random_states(strategy.device):
            found, classes = experience_statistics(
                strategy.experience,
                extractors,
                batch_size=max(strategy.train_mb_size, strategy.eval_mb_size),
                device=strategy.device,
                precision=getattr(strategy, "precision", "float32"),
            )
        task_label = task_label_of(strategy.experience)
        keys = [(task_label, label) for label in classes]
        # A checkpoint of Avalanche's may have been mapped to another device.
        known = None if self.statistics is None else self.statistics.to("cpu")
        now = found.to("cpu")
        statistics, keys = followed(known, self.keys, now, keys, map_prior=self.map_prior)
        classifier = self._fold(statistics, keys, strategy)
        self.statistics, self.keys, self._previous = statistics, keys, None
        self._answer_with(classifier, strategy)

    def _fold(
        self, statistics: ClassStatistics, names: list[tuple[int, int]], strategy: Any
    ) -> TaskClassifiers:
        """The classifier as one linear layer, at least in float32."""
        shrinkage = shrinkage_of(statistics, prior=self.covariance_prior)
        layer = linear_discriminants(statistics, shrinkage=shrinkage)
        dtype = torch.promote_types(next(strategy.model.parameters()).dtype, torch.float32)
        weight, bias = (part.to(strategy.device, dtype) for part in layer)
        keys = torch.tensor(names)
        return frozen_classifiers({"layers.0.weight": weight, "layers.0.bias": bias, "keys": keys})

    def _extractor(self, strategy: Any) -> FrozenExtractor:
        average = _average_of(strategy.plugins)
        if average is None:
            return FrozenExtractor(strategy.model, self.head)
        assert average.averaged_model is not None
        return FrozenExtractor(average.averaged_model, self.head)

    # Evaluation ---------------------------------------------------------------------------------

    def _answer_with(self, classifier: TaskClassifiers | None, strategy: Any) -> None:
        if isinstance(strategy.model, DualLearner):
            strategy.model.gaussian = classifier  # which then answers by itself
        else:
            self._classifier = None if classifier is None else classifier.eval()

    def before_eval_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Listen to what the head is given in the forward pass that follows, the last before it."""
        self._stop_listening()
        if self._classifier is None:
            return
        self._classifier.to(strategy.device)
        if not is_compiled(strategy.model):
            self._listen(strategy.model)

    def _listen(self, model: nn.Module) -> None:
        assert self.head is not None
        head = model.get_submodule(self.head)
        self._hooks = [
            model.register_forward_pre_hook(lambda *_: self._features.clear()),
            head.register_forward_pre_hook(lambda _, x: self._features.append(x[0].detach())),
        ]

    def after_eval_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Put the answer of the Gaussian classifier in the place of the model's."""
        if self._classifier is None:
            return
        task_labels = task_labels_in(strategy.mbatch, strategy.experience.dataset)
        if is_compiled(strategy.model):  # there was nothing to be heard: a pass of our own
            self._listen(strategy.model)
            with eagerly(strategy.model):
                avalanche_forward(strategy.model, strategy.mb_x, task_labels)
        features = torch.cat(self._features)
        if len(self._features) > 1:  # a multi-task model takes the tasks of a batch one by one
            assert task_labels is not None
            features[task_labels.argsort(stable=True)] = features.clone()
        self._stop_listening()
        width = strategy.mb_output.shape[1]
        self._classifier.widen(width)
        answer = self._classifier.answer(self._classifier(features), task_labels)
        if answer.shape[1] > width:  # where it knows no class of the task the model is left to it
            knows = answer.argmax(dim=1, keepdim=True) < width
            answer = torch.where(knows, answer[:, :width], strategy.mb_output.to(answer.dtype))
        strategy.mb_output = answer

    def after_eval(self, strategy: Any, **kwargs: Any) -> None:
        """Hold nothing of an evaluation."""
        self._stop_listening()

    def _stop_listening(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._features.clear()

    # Checkpoints --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What it knows, as tensors, numbers and strings in nested dicts."""
        return {
            "options": self._options,
            "keys": [list(key) for key in self.keys],
            "statistics": None if self.statistics is None else dict(vars(self.statistics)),
            "classifier": None if self._classifier is None else self._classifier.state_dict(),
            "previous": None if self._previous is None else self._previous.state_dict(),
            "previous_layers": None if self._previous is None else layer_states(self._previous),
        }

    @property
    def _options(self) -> list[Any]:
        return [self.covariance_prior, self.map_prior]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` told, between two experiences or amid the same one.

        Raises:
            ValueError: A state of other options.
        """
        if state["options"] != self._options:
            raise ValueError(
                "Expected a state of a GaussianClassifierPlugin with priors "
                f"{self._options}, got {state['options']}."
            )
        statistics, parts = state["statistics"], state["classifier"]
        self.keys = [(task, label) for task, label in state["keys"]]
        self.statistics = None if statistics is None else ClassStatistics(**statistics)
        self._classifier = None if parts is None else frozen_classifiers(parts).eval()
        if state["previous"] is None:
            self._previous = None
        elif self._previous is not None:
            self._previous.load_state_dict(state["previous"])
            set_layer_states_(self._previous, state["previous_layers"])


def _check_features(model: nn.Module, head: str) -> None:
    """Refuse a model whose features depend on the task, or that answers otherwise than by a head.

    Raises:
        ValueError: It is one.
    """
    kinds = PackNetModule | TrainEvalModel
    inside = [m for m in model.modules() if m not in (model, model.get_submodule(head))]
    if isinstance(model, kinds) or any(isinstance(m, kinds | MultiTaskModule) for m in inside):
        raise ValueError(
            "Expected a model with one feature extractor for all tasks and a linear head, got "
            f"{type(model).__name__}: a Gaussian classifier cannot follow its features."
        )


def _average_of(plugins: list[Any]) -> CumulativeParameterAveragingPlugin | None:
    found = (p for p in plugins if isinstance(p, CumulativeParameterAveragingPlugin))
    return next(found, None)


def _check_plugins(own: GaussianClassifierPlugin, plugins: list[Any]) -> None:
    if sum(isinstance(plugin, GaussianClassifierPlugin) for plugin in plugins) > 1:
        raise ValueError(
            "Expected one GaussianClassifierPlugin in a strategy, got several: leave out "
            "classifier='gaussian' where you pass a plugin of your own."
        )
    average = _average_of(plugins)
    if average is not None and plugins.index(average) > plugins.index(own):
        raise ValueError(
            "Expected the averaging plugin before the Gaussian one, got it after: pass "
            "plugins=[average, gaussian], as the averaged model is complete only then."
        )
