"""The methods of the comparisons by name, each in one place. Baselines are Avalanche's own.

What a method runs with is in `hyperparameters.py`; what never changes is in `building.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from avalanche.training.supervised import (
    AGEM,
    EWC,
    GEM,
    MAS,
    Cumulative,
    JointTraining,
    Naive,
)

from avalanche_dlcpa.self_supervised import HEADS
from avalanche_dlcpa.self_supervised.head import SelfSupervisedHead
from benchmarks.building import (
    Build,
    dark_experience,
    dark_experience_without_labels,
    dlcpa,
    icarl,
    learning_without_forgetting,
    on_sgd,
    packnet,
    replay,
    single_task,
    synaptic_intelligence,
    with_gradient_memory,
    with_head_a_task,
)
from benchmarks.one_labelled_view import BYOLOneLabelledView, SimCLROneLabelledView


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


def _dlcpa_method(title: str, ssl: str | None, **ablation: Any) -> Method:
    return Method(title, dlcpa(None if ssl is None else HEADS[ssl], **ablation), draws_views=True)


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
    build = dlcpa(HEADS[ssl], classifier="gaussian")
    title = f"DLCPA + {_HEAD_TITLES[ssl]}, Gaussian classifier"
    return Method(title, build, draws_views=True, trains_as=f"dlcpa-{ssl}")


def _with_one_labelled_view(ssl: str, kind: type[SelfSupervisedHead]) -> Method:
    title = f"DLCPA + {_HEAD_TITLES[ssl]}, labels on one view"
    return Method(title, dlcpa(kind), draws_views=True, trains_as=f"dlcpa-{ssl}")


_ONE_HEAD = {
    "naive": Method("Naive", on_sgd(Naive)),
    "ewc": Method("EWC", on_sgd(EWC, strength="ewc_lambda")),
    "lwf": Method("LwF", learning_without_forgetting),
}


def _with_heads(method: Method) -> Method:
    title, build = f"{method.title}, a head a task", with_head_a_task(method.build)
    return dataclasses.replace(method, title=title, build=build, needs_task_labels=True)


# Avalanche's defaults hold besides: EWC keeps the importances of each task apart, those of MAS are
# half the new ones and half the old (alpha 0.5), A-GEM takes 64 samples of its buffer in each step.
METHODS = {
    # Upper bounds
    "stl": Method("STL", single_task("own")),
    "stl-me": Method("STL-me", single_task("mean")),
    "stl-me-finetuned": Method(
        "STL-me, classifiers finetuned", single_task("mean", finetunes=True), keeps_samples=True
    ),
    "joint": Method("Joint", on_sgd(JointTraining), keeps_samples=True, learns_at_once=True),
    "cumulative": Method("Cumulative", on_sgd(Cumulative), keeps_samples=True),
    # Methods with a buffer
    "gem": Method("GEM", with_gradient_memory(GEM), keeps_samples=True),
    "agem": Method("A-GEM", with_gradient_memory(AGEM), keeps_samples=True, channels_last=False),
    "der": Method("DER", dark_experience_without_labels, keeps_samples=True),
    "der++": Method("DER++", dark_experience, keeps_samples=True),
    "replay": Method("Replay", replay, keeps_samples=True),
    "icarl": Method("iCaRL", icarl, keeps_samples=True),
    # Exemplar-free methods
    **_ONE_HEAD,
    "mas": Method("MAS", on_sgd(MAS, strength="lambda_reg")),
    "si": Method("SI", synaptic_intelligence),
    "packnet": Method("PackNet", packnet, needs_task_labels=True, channels_last=False),
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
    "dlcpa-simclr-one-view": _with_one_labelled_view("simclr", SimCLROneLabelledView),
    "dlcpa-byol-one-view": _with_one_labelled_view("byol", BYOLOneLabelledView),
}
