"""What builds the strategy of each method, with what never changes in it and its source."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from avalanche.models import as_multitask
from avalanche.training.plugins import LRSchedulerPlugin
from avalanche.training.supervised import (
    AGEM,
    DER,
    ICaRL,
    LwF,
    PackNet,
    Replay,
    SynapticIntelligence,
)
from avalanche.training.templates import SupervisedTemplate
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR

from avalanche_dlcpa import DLCPAStrategy, SingleTaskStrategy
from avalanche_dlcpa.model_head import find_head
from avalanche_dlcpa.self_supervised.head import SelfSupervisedHead
from benchmarks.avalanche_repairs import (
    ScheduleOfEachOptimizer,
    repair_gradient_episodic_memory,
    repair_learning_without_forgetting,
    repair_plugins_of_packnet,
    repair_synaptic_intelligence,
)
from benchmarks.given_loss import take_head
from benchmarks.hyperparameters import HyperparameterError
from benchmarks.networks import packnet_network, split_at_head
from benchmarks.settings import Setting

BUFFER_SIZE = 500  # samples, where the hyperparameter names no other (the paper's Tables 2 and 3)
Build = Callable[..., SupervisedTemplate]


def _sgd(network: nn.Module, lr: float, momentum: float) -> SGD:
    return SGD(network.parameters(), lr=lr, momentum=momentum)


def _lowered(optimizer: Any, epochs: int, last_epochs: int) -> MultiStepLR:
    """A tenth of the learning rate for the last of so many epochs."""
    most = max(1, epochs - 1)
    if not isinstance(last_epochs, int) or not 0 <= last_epochs <= most:
        raise HyperparameterError(
            f"Expected `last_epochs` to be a whole number from 0 to {most}, got {last_epochs!r}."
        )
    return MultiStepLR(optimizer, [max(1, epochs - last_epochs)])


def _with_schedule(options: dict[str, Any], optimizer: SGD, last_epochs: int) -> dict[str, Any]:
    """Arguments of a strategy, with the plugin that lowers its learning rate in each experience."""
    if not last_epochs:
        return options
    schedule = LRSchedulerPlugin(_lowered(optimizer, options["train_epochs"], last_epochs))
    return {**options, "plugins": [*options.get("plugins", []), schedule]}


def on_sgd(strategy: type[SupervisedTemplate], strength: str = "", **fixed: Any) -> Build:
    """Builds a strategy, Avalanche's or `SingleTaskStrategy`, on plain SGD.

    Its learning rate is fixed, unless the hyperparameter ``last_epochs`` lets it fall to a tenth
    for so many epochs at the end of each experience, as in DLCPA.

    Args:
        strategy: Its class.
        strength: What the hyperparameter ``strength`` is called there.
        **fixed: Arguments that never change.
    """

    def build(
        network: nn.Module,
        *,
        setting: Setting,
        lr: float,
        momentum: float = 0.0,
        last_epochs: int = 0,
        **options: Any,
    ) -> SupervisedTemplate:
        if strength:
            if "strength" not in options:
                raise HyperparameterError(
                    f"Expected a `strength` for {strategy.__name__}, got none: name it with --set."
                )
            if strength in options:
                raise HyperparameterError(
                    f"Expected `strength`, which {strategy.__name__} calls {strength}, got "
                    f"{strength}: name `strength`."
                )
            options[strength] = options.pop("strength")
        optimizer = _sgd(network, lr, momentum)
        return strategy(
            model=network,
            optimizer=optimizer,
            criterion=CrossEntropyLoss(),
            **fixed,
            **_with_schedule(options, optimizer, last_epochs),
        )

    return build


def with_head_a_task(build: Build) -> Build:
    """The same with a head a task, trained on the classes of its task alone."""

    def build_with_heads(network: nn.Module, **options: Any) -> SupervisedTemplate:
        return build(as_multitask(network, find_head(network)), **options)

    return build_with_heads


def _checked_size(name: str, size: Any, least: int, what: str) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < least:
        raise HyperparameterError(
            f"Expected `{name}` to be a whole number from {least} on, {what}, got {size!r}."
        )
    return size


def replay(
    network: nn.Module, *, buffer_size: int = BUFFER_SIZE, **options: Any
) -> SupervisedTemplate:
    """Replay from a buffer of samples."""
    size = _checked_size("buffer_size", buffer_size, 1, "a sample")
    return on_sgd(Replay, mem_size=size)(network, **options)


def dark_experience(
    network: nn.Module,
    *,
    setting: Setting,
    train_mb_size: int,
    buffer_size: int = BUFFER_SIZE,
    **options: Any,
) -> SupervisedTemplate:
    """DER++, which is DER with a `beta` above 0.

    Avalanche replays nothing where a whole buffer holds less than a mini-batch.
    """
    size = _checked_size("buffer_size", buffer_size, 1, "a sample")
    build = on_sgd(DER, mem_size=size, batch_size_mem=min(train_mb_size, size))
    return build(network, setting=setting, train_mb_size=train_mb_size, **options)


def dark_experience_without_labels(network: nn.Module, **options: Any) -> SupervisedTemplate:
    """DER."""
    if "beta" in options:
        raise HyperparameterError(
            f"Expected hyperparameters that DER has, got beta {options['beta']}: name der++."
        )
    return dark_experience(network, beta=0.0, **options)


def with_gradient_memory(strategy: type[SupervisedTemplate]) -> Build:
    """GEM and AGEM, whose buffer is so many samples a task."""

    def build(
        network: nn.Module, *, setting: Setting, buffer_size: int = BUFFER_SIZE, **options: Any
    ) -> SupervisedTemplate:
        repair_gradient_episodic_memory()
        num_tasks = setting.num_experiences
        size = _checked_size("buffer_size", buffer_size, num_tasks, "a sample a task")
        if strategy is AGEM and "sample_size" in options:  # which it shares among the tasks
            _checked_size("sample_size", options["sample_size"], num_tasks, "a sample a task")
        build_on_sgd = on_sgd(strategy, patterns_per_exp=size // num_tasks)
        return build_on_sgd(network, setting=setting, **options)

    return build


def synaptic_intelligence(network: nn.Module, **options: Any) -> SupervisedTemplate:
    """SI, as it should be."""
    repair_synaptic_intelligence()
    return on_sgd(SynapticIntelligence, strength="si_lambda")(network, **options)


def learning_without_forgetting(network: nn.Module, **options: Any) -> SupervisedTemplate:
    """LwF, as it should be, with the temperature of its paper."""
    repair_learning_without_forgetting()
    return on_sgd(LwF, strength="alpha", temperature=2.0)(network, **options)


def icarl_memory(num_classes: int, buffer_size: int = BUFFER_SIZE) -> int:
    """The largest memory with which iCaRL never keeps more samples than its buffer holds.

    Avalanche's takes an equal share of each class seen so far, rounded up.

    Example:
        >>> icarl_memory(100), icarl_memory(200)  # in the end 5 and 2 of each class
        (420, 334)
    """
    return min(buffer_size // seen * seen for seen in range(1, num_classes + 1))


def icarl(
    network: nn.Module,
    *,
    setting: Setting,
    lr: float,
    momentum: float = 0.0,
    last_epochs: int = 0,
    buffer_size: int = BUFFER_SIZE,
    **options: Any,
) -> ICaRL:
    """Builds iCaRL on the two parts of the network, with the schedule of `on_sgd`."""
    size = _checked_size("buffer_size", buffer_size, setting.num_classes, "a sample a class")
    extractor, classifier = split_at_head(network)
    optimizer = SGD([*extractor.parameters(), *classifier.parameters()], lr, momentum)
    return ICaRL(
        feature_extractor=extractor,
        classifier=classifier,
        optimizer=optimizer,
        memory_size=icarl_memory(setting.num_classes, size),
        buffer_transform=setting.buffer_transform,
        fixed_memory=True,
        **_with_schedule(options, optimizer, last_epochs),
    )


def packnet(
    network: nn.Module,
    *,
    setting: Setting,
    lr: float,
    post_prune_share: float,
    last_epochs: int = 0,
    **options: Any,
) -> PackNet:
    """Builds PackNet with an equal share of the weights for every task, and `on_sgd`'s schedule."""
    epochs = options["train_epochs"]
    after = max(1, round(post_prune_share * epochs))
    if after >= epochs:
        raise HyperparameterError(
            f"Expected `post_prune_share` to leave an epoch before the pruning, got "
            f"{post_prune_share}, which is {after} of {epochs} epochs: choose a lower share, or a "
            "setting of at least 2 epochs."
        )
    num_tasks = setting.num_experiences
    model = packnet_network(network, num_tasks)
    optimizer = _sgd(model, lr, 0.0)  # momentum would move frozen weights
    schedule = functools.partial(_lowered, epochs=epochs, last_epochs=last_epochs)
    schedule(optimizer)  # refuses what does not fit
    strategy = PackNet(
        model=model,
        optimizer=optimizer,
        post_prune_epochs=after,
        prune_proportion=[1 - 1 / (num_tasks - task) for task in range(num_tasks)],
        **options,
    )
    repair_plugins_of_packnet(strategy)
    if last_epochs:
        strategy.plugins.append(ScheduleOfEachOptimizer(schedule))
    return strategy


def single_task(predict_with: str, *, finetunes: bool = False) -> Build:
    """STL and its variants; classifiers are finetuned for as many epochs as tasks are learned."""
    build = on_sgd(SingleTaskStrategy, predict_with=predict_with)

    def with_finetuning(
        network: nn.Module, *, train_epochs: int, **options: Any
    ) -> SupervisedTemplate:
        epochs = {"finetune_epochs": train_epochs, **options}
        return build(network, train_epochs=train_epochs, **epochs)

    def without_finetuning(network: nn.Module, **options: Any) -> SupervisedTemplate:
        given = [f"{name} {options[name]}" for name in options if name.startswith("finetune")]
        if given:
            raise HyperparameterError(
                "Expected hyperparameters of classifiers that are not finetuned, got "
                f"{', '.join(given)}: name stl-me-finetuned."
            )
        return build(network, **options)

    return with_finetuning if finetunes else without_finetuning


def dlcpa(kind: type[SelfSupervisedHead] | None, **ablation: Any) -> Build:
    """DLCPA with a head; both learning rates fall to a tenth at the end (authors' runs)."""

    def build(
        network: nn.Module,
        *,
        setting: Setting,
        lr: float,
        momentum: float = 0.0,
        last_epochs: int = 1,
        **options: Any,
    ) -> DLCPAStrategy:
        if "ema_decay" in options and ablation.get("stable_update") != "ema":
            raise HyperparameterError(
                f"Expected hyperparameters of the cumulative mean, got ema_decay "
                f"{options['ema_decay']}: name dlcpa-c."
            )
        head = None if kind is None else take_head(kind, options)

        def schedule(optimizer: Any) -> MultiStepLR:
            return _lowered(optimizer, options["train_epochs"], last_epochs)

        return DLCPAStrategy(
            model=network,
            optimizer=_sgd(network, lr, momentum),
            ssl=head,
            scheduler=schedule,
            classifier_scheduler=schedule,
            **ablation,
            **options,
        )

    return build
