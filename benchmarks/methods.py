"""The methods of the comparisons by name, each in one place. Baselines are Avalanche's own.

What a method runs with is in `hyperparameters.py`; what never changes is here, with its source.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from avalanche.models import as_multitask
from avalanche.training.plugins import LRSchedulerPlugin
from avalanche.training.supervised import (
    AGEM,
    DER,
    EWC,
    GEM,
    MAS,
    Cumulative,
    ICaRL,
    JointTraining,
    LwF,
    Naive,
    PackNet,
    Replay,
    SynapticIntelligence,
)
from avalanche.training.templates import SupervisedTemplate
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR

from avalanche_dlcpa import DLCPAStrategy, SelfSupervisedLossPlugin, SingleTaskStrategy
from avalanche_dlcpa.model_head import find_head
from avalanche_dlcpa.self_supervised import HEADS, SelfSupervisedHead
from benchmarks.avalanche_repairs import repair_plugins_of_packnet, repair_synaptic_intelligence
from benchmarks.networks import packnet_network, split_at_head
from benchmarks.settings import Setting

BUFFER_SIZE = 500  # samples, in all methods that keep some (the paper's Tables 2 and 3)
Build = Callable[..., SupervisedTemplate]


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of the comparisons.

    Attributes:
        title: For tables and pages.
        build: Network, then by keyword ``setting``, the hyperparameters and Avalanche's keyword
            arguments -> strategy.
        draws_views: Whether it augments by views of its own, ``views``, and is therefore given
            images without the stream's augmentation.
        keeps_samples: Whether it keeps samples of earlier tasks.
        needs_task_labels: Whether it has to be told the task, and gives Task-IL alone.
        learns_at_once: Whether it learns all experiences together.
        channels_last: Whether the network is laid out channels last, which convolutions want on
            GPUs and CPUs. A-GEM of Avalanche fails to flatten such gradients, and PackNet prunes
            a copy of such weights.
        trains_as: Name of the method that trains alike, whose hyperparameters apply; None: its own.
    """

    title: str
    build: Build
    draws_views: bool = False
    keeps_samples: bool = False
    needs_task_labels: bool = False
    learns_at_once: bool = False
    channels_last: bool = True
    trains_as: str | None = None


def _sgd(network: nn.Module, lr: float, momentum: float) -> SGD:
    return SGD(network.parameters(), lr=lr, momentum=momentum)


def _lowered(optimizer: Any, epochs: int, last_epochs: int) -> MultiStepLR:
    """A tenth of the learning rate for the last of so many epochs."""
    return MultiStepLR(optimizer, [max(1, epochs - last_epochs)])


def _with_schedule(options: dict[str, Any], optimizer: SGD, last_epochs: int) -> dict[str, Any]:
    """Arguments of a strategy, with the plugin that lowers its learning rate in each experience."""
    if not last_epochs:
        return options
    schedule = LRSchedulerPlugin(_lowered(optimizer, options["train_epochs"], last_epochs))
    return {**options, "plugins": [*options.get("plugins", []), schedule]}


def _avalanche(strategy: type[SupervisedTemplate], strength: str = "", **fixed: Any) -> Build:
    """Builds a strategy of Avalanche's on plain SGD.

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


def _head_a_task(build: Build) -> Build:
    """The same with a head a task, trained on the classes of its task alone."""

    def build_with_heads(network: nn.Module, **options: Any) -> SupervisedTemplate:
        return build(as_multitask(network, find_head(network)), **options)

    return build_with_heads


def _dark_experience(
    network: nn.Module, *, setting: Setting, train_mb_size: int, **options: Any
) -> SupervisedTemplate:
    """DER, and DER++ where beta is above 0.

    Avalanche replays nothing where a whole buffer holds less than a mini-batch.
    """
    build = _avalanche(DER, mem_size=BUFFER_SIZE, batch_size_mem=min(train_mb_size, BUFFER_SIZE))
    return build(network, setting=setting, train_mb_size=train_mb_size, **options)


def _gradient_memory(strategy: type[SupervisedTemplate]) -> Build:
    """GEM and AGEM, whose buffer is so many samples a task."""

    def build(network: nn.Module, *, setting: Setting, **options: Any) -> SupervisedTemplate:
        patterns = BUFFER_SIZE // setting.num_experiences
        return _avalanche(strategy, patterns_per_exp=patterns)(network, setting=setting, **options)

    return build


def _si(network: nn.Module, **options: Any) -> SupervisedTemplate:
    repair_synaptic_intelligence()
    return _avalanche(SynapticIntelligence, strength="si_lambda")(network, **options)


def icarl_memory(num_classes: int) -> int:
    """The largest memory with which iCaRL never keeps more than `BUFFER_SIZE` samples.

    Avalanche's takes an equal share of each class seen so far, rounded up.

    Example:
        >>> icarl_memory(100), icarl_memory(200)  # in the end 5 and 2 of each class
        (420, 334)
    """
    return min(BUFFER_SIZE // seen * seen for seen in range(1, num_classes + 1))


def _icarl(
    network: nn.Module, *, setting: Setting, lr: float, momentum: float = 0.0, **options: Any
) -> ICaRL:
    extractor, classifier = split_at_head(network)
    return ICaRL(
        feature_extractor=extractor,
        classifier=classifier,
        optimizer=SGD([*extractor.parameters(), *classifier.parameters()], lr, momentum),
        memory_size=icarl_memory(setting.num_classes),
        buffer_transform=setting.buffer_transform,
        fixed_memory=True,
        **options,
    )


def _packnet(
    network: nn.Module, *, setting: Setting, lr: float, post_prune_share: float, **options: Any
) -> PackNet:
    """PackNet with an equal share of the weights for every task."""
    model = packnet_network(network)
    num_tasks = setting.num_experiences
    shares = [1 - 1 / (num_tasks - task) for task in range(num_tasks)]
    strategy = PackNet(
        model=model,
        optimizer=_sgd(model, lr, 0.0),  # momentum would move frozen weights
        post_prune_epochs=max(1, round(post_prune_share * options["train_epochs"])),
        prune_proportion=shares,
        **options,
    )
    repair_plugins_of_packnet(strategy)
    return strategy


def _single_task(predict_with: str, *, finetunes: bool = False) -> Build:
    """STL and its variants; classifiers are finetuned for as many epochs as tasks are learned."""

    def build(
        network: nn.Module,
        *,
        setting: Setting,
        lr: float,
        momentum: float = 0.0,
        last_epochs: int = 0,
        **options: Any,
    ) -> SingleTaskStrategy:
        if finetunes:
            options["finetune_epochs"] = options["train_epochs"]
        optimizer = _sgd(network, lr, momentum)
        return SingleTaskStrategy(
            model=network,
            optimizer=optimizer,
            predict_with=predict_with,
            **_with_schedule(options, optimizer, last_epochs),
        )

    return build


def _names_of_head(ssl: str) -> dict[str, str]:
    """What a head's options are called among hyperparameters, where momentum is the optimizer's."""
    names = inspect.signature(HEADS[ssl]).parameters
    return {"encoder_momentum" if name == "momentum" else name: name for name in names}


def _take_head(ssl: str, options: dict[str, Any]) -> SelfSupervisedHead:
    """Make a head, and take its options out of the hyperparameters."""
    names = _names_of_head(ssl).items()
    return HEADS[ssl](**{own: options.pop(name) for name, own in names if name in options})


def options_of_loss(ssl: str, options: dict[str, Any]) -> dict[str, Any]:
    """What of DLCPA's hyperparameters is of its self-supervised loss, as baselines are given it.

    Example:
        >>> options_of_loss("mocov2", {"lr": 0.1, "supervised_weight": 4.0, "queue_size": 1024})
        {'queue_size': 1024, 'ssl_weight': 0.25}
    """
    found = {name: options[name] for name in _names_of_head(ssl) if name in options}
    if options.get("supervised_weight"):
        found["ssl_weight"] = 1 / options["supervised_weight"]
    return found


def take_loss(options: dict[str, Any], setting: Setting) -> list[SelfSupervisedLossPlugin]:
    """Make the plugin of a baseline's self-supervised loss, if it is given one.

    Args:
        options: Hyperparameters, from which ``ssl`` and all of the loss are taken out.
        setting: Makes the views.
    """
    ssl = options.pop("ssl", None)
    if ssl is None:
        return []
    weight = {"weight": options.pop("ssl_weight")} if "ssl_weight" in options else {}
    head = _take_head(ssl, options)
    return [SelfSupervisedLossPlugin(head, views=setting.make_views(), **weight)]


def _dlcpa(ssl: str | None, **ablation: Any) -> Build:
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
        head = None if ssl is None else _take_head(ssl, options)

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


def _dlcpa_method(title: str, ssl: str | None, **ablation: Any) -> Method:
    return Method(title, _dlcpa(ssl, **ablation), draws_views=True)


_HEAD_TITLES = {
    "mocov2": "MoCoV2",
    "byol": "BYOL",
    "simclr": "SimCLR",
    "vicreg": "VICReg",
    "barlow": "Barlow Twins",
    "simsiam": "SimSiam",
    "nnclr": "NNCLR",
}


def _gaussian_method(ssl: str) -> Method:
    """DLCPA with a Gaussian classifier in the place of the trained ones."""
    build = _dlcpa(ssl, classifier="gaussian")
    title = f"DLCPA + {_HEAD_TITLES[ssl]}, Gaussian classifier"
    return Method(title, build, draws_views=True, trains_as=f"dlcpa-{ssl}")


_ONE_HEAD = {
    "naive": Method("Naive", _avalanche(Naive)),
    "ewc": Method("EWC", _avalanche(EWC, strength="ewc_lambda")),
    "lwf": Method("LwF", _avalanche(LwF, strength="alpha", temperature=2.0)),
}


def _with_heads(method: Method) -> Method:
    title, build = f"{method.title}, a head a task", _head_a_task(method.build)
    return dataclasses.replace(method, title=title, build=build, needs_task_labels=True)


METHODS = {
    # Upper bounds
    "stl": Method("STL", _single_task("own")),
    "stl-me": Method("STL-me", _single_task("mean")),
    "stl-me-finetuned": Method(
        "STL-me, classifiers finetuned", _single_task("mean", finetunes=True), keeps_samples=True
    ),
    "joint": Method("Joint", _avalanche(JointTraining), keeps_samples=True, learns_at_once=True),
    "cumulative": Method("Cumulative", _avalanche(Cumulative), keeps_samples=True),
    # Methods with a buffer
    "gem": Method("GEM", _gradient_memory(GEM), keeps_samples=True),
    "agem": Method("A-GEM", _gradient_memory(AGEM), keeps_samples=True, channels_last=False),
    "der": Method("DER", functools.partial(_dark_experience, beta=0.0), keeps_samples=True),
    "der++": Method("DER++", _dark_experience, keeps_samples=True),
    "replay": Method("Replay", _avalanche(Replay, mem_size=BUFFER_SIZE), keeps_samples=True),
    "icarl": Method("iCaRL", _icarl, keeps_samples=True),
    # Exemplar-free methods
    **_ONE_HEAD,
    "mas": Method("MAS", _avalanche(MAS, strength="lambda_reg")),
    "si": Method("SI", _si),
    "packnet": Method("PackNet", _packnet, needs_task_labels=True, channels_last=False),
    # Table 4's ablations of DLCPA + MoCoV2
    "dlcpa-a": _dlcpa_method("(a) without SSL", None),
    "dlcpa-b": _dlcpa_method("(b) additional classifier", "mocov2", plastic_classifier="temporary"),
    "dlcpa-c": _dlcpa_method("(c) EMA", "mocov2", stable_update="ema"),
    "dlcpa-d": _dlcpa_method("(d) direct copy", "mocov2", stable_update="copy"),
    "dlcpa-e": _dlcpa_method("(e) plastic features", "mocov2", classifier_features="plastic"),
    **{
        f"dlcpa-{ssl}": _dlcpa_method(f"DLCPA + {title}", ssl)
        for ssl, title in reversed(_HEAD_TITLES.items())
    },
    # Beyond the paper
    **{f"{name}-heads": _with_heads(method) for name, method in _ONE_HEAD.items()},
    **{f"dlcpa-{ssl}-gaussian": _gaussian_method(ssl) for ssl in ("simclr", "byol", "mocov2")},
}
