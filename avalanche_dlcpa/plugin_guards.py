"""Avalanche's plugins that would do nothing or harm in DLCPA's loop, refused before training.

COMPATIBILITY.md lists them all, those that work and those that do not; tests keep the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from avalanche.training.plugins import EarlyStoppingPlugin, LRSchedulerPlugin
from torch.optim import Optimizer

from avalanche_dlcpa.metrics import SUMMARY_NAMES

_ALL_GRADIENTS = (
    "it compares gradients of the whole model, and the classifiers have a step of their own"
)
_FEATURES = "it wants the features of the model by a name of its own"
_LABELS = "it tells classes by their label, and gets their columns among those of the task"
_OLD_OUTPUTS = "it distils answers for old classes, and a step answers for those of its task alone"
_OWN = "DLCPAStrategy does that by itself"
_PROTOTYPES = "it wants a model with an `eval_classifier` of prototypes"
_GENERATED = "its samples come with labels of old classes, but without their task"

REFUSED: Mapping[str, str] = {
    "AGEMPlugin": _ALL_GRADIENTS,
    "BiCPlugin": _OLD_OUTPUTS,
    "CWRStarPlugin": "it consolidates the last layer of the model, which is taken out",
    "ClassifierAlignmentPlugin": _OWN,
    "CoPEPlugin": "it replaces the criterion and the last layer of the model",
    "CumulativeParameterAveragingPlugin": _OWN,
    "CurrentDataFeCAMUpdate": _PROTOTYPES,
    "CurrentDataNCMUpdate": _PROTOTYPES,
    "EWCPlugin": "it measures importances in evaluation mode, where the stable learner answers, so "
    "that those of the plastic learner are all zero",
    "FeCAMOracle": _PROTOTYPES,
    "FeatureDistillationPlugin": _FEATURES,
    "FromScratchTrainingPlugin": "it sets the stable learner back, the average of all tasks",
    "GDumbPlugin": "it replaces the model, and leaves optimizer and average to the one before",
    "GEMPlugin": _ALL_GRADIENTS,
    "GSS_greedyPlugin": "it scores samples by gradients in evaluation mode, where the stable "
    "learner answers, which takes none",
    "GenerativeReplayPlugin": _GENERATED,
    "ICaRLLossPlugin": _LABELS,
    "LFLPlugin": _FEATURES,
    "LwFPlugin": _OLD_OUTPUTS,
    "MIRPlugin": _ALL_GRADIENTS,
    "MaskedCrossEntropy": _LABELS,
    "MemoryFeCAMUpdate": _PROTOTYPES,
    "MemoryNCMUpdate": _PROTOTYPES,
    "NCMOracle": _PROTOTYPES,
    "RARPlugin": "it traces the graph of the model, which a dual learner has none of",
    "RWalkPlugin": "it puts the model into evaluation mode amid training",
    "SelfSupervisedLossPlugin": "DLCPAStrategy has a self-supervised loss of its own: use the "
    "argument `ssl` of DLCPAStrategy",
    "SynapticIntelligencePlugin": "it wants a gradient of every parameter, and the classifiers of "
    "earlier tasks have none",
    "TrainGeneratorAfterExpPlugin": _GENERATED,
}

# They compute a rate from the one before it, or count on their own, so that setting them back to
# step 0 does not bring their first rates back.
NEVER_RESET = (
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingWarmRestarts",
    "LinearLR",
    "SWALR",
    "SequentialLR",
)


def check_plugins(plugins: Iterable[Any], optimizer: Optimizer, eval_every: int) -> None:
    """Refuse plugins that would do nothing or harm.

    Args:
        plugins: All of the strategy's, and its criterion, which may be one.
        optimizer: Of the plastic learner.
        eval_every: Of the strategy.

    Raises:
        ValueError: A plugin of `REFUSED` or a subclass of one; a learning rate plugin with another
            optimizer or with a scheduler that does not start anew; one that watches evaluations
            in training, although there are none, or a mean over the tasks learned so far.
    """
    for plugin in plugins:
        for name in _names(plugin):
            if name in REFUSED:
                raise ValueError(
                    f"Expected plugins that work with DLCPAStrategy, got {name}: {REFUSED[name]}. "
                    "COMPATIBILITY.md lists those that do."
                )
        if isinstance(plugin, LRSchedulerPlugin):
            _check_scheduler(plugin, optimizer)
        if _watches_evaluations(plugin) and eval_every < 1:
            raise ValueError(
                f"Expected `eval_every` to be at least 1 with {type(plugin).__name__}, which "
                f"watches evaluations in training, got {eval_every}."
            )
        if isinstance(plugin, EarlyStoppingPlugin):
            _check_watched_metric(plugin)


def _watches_evaluations(plugin: Any) -> bool:
    if isinstance(plugin, LRSchedulerPlugin):
        return plugin.metric == "val_loss"
    return isinstance(plugin, EarlyStoppingPlugin)


def _check_watched_metric(plugin: EarlyStoppingPlugin) -> None:
    """What it watches must be of the same tasks before the first epoch as after it."""
    if plugin.metric_name in SUMMARY_NAMES:
        raise ValueError(
            "Expected EarlyStoppingPlugin to watch a metric that means the same in all epochs, got "
            f"'{plugin.metric_name}', a summary over the tasks learned so far, which has one task "
            "less before the first epoch and is not beaten: watch 'Top1_Acc_Stream' of Avalanche's "
            "accuracy_metrics(stream=True)."
        )


def _names(plugin: Any) -> list[str]:
    """Names of the classes of Avalanche's and of ours that a plugin is of."""
    homes = ("avalanche", "avalanche_dlcpa")
    return [c.__name__ for c in type(plugin).__mro__ if c.__module__.split(".")[0] in homes]


def _check_scheduler(plugin: LRSchedulerPlugin, optimizer: Optimizer) -> None:
    scheduler, name = plugin.scheduler, type(plugin.scheduler).__name__
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError(
            "Expected the scheduler of LRSchedulerPlugin to be one of the strategy's `optimizer`, "
            f"got a {name} of another optimizer."
        )
    if name in NEVER_RESET and plugin.reset_scheduler and not plugin.first_exp_only:
        raise ValueError(
            "Expected a scheduler that LRSchedulerPlugin can set back for each experience, got "
            f"{name}, whose rates would be others from the second one on: pass "
            f"`scheduler=lambda optimizer: {name}(optimizer, ...)` to DLCPAStrategy instead."
        )
