"""One training for `benchmarks.gaussian`: the network after each experience, kept to be judged."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from avalanche_dlcpa import DualLearner, GaussianClassifierPlugin, seed_everything
from avalanche_dlcpa.folder_lock import lock_folder
from avalanche_dlcpa.frozen_extractor import FrozenExtractor
from avalanche_dlcpa.model_head import find_head
from benchmarks.cells import Cell, expect_held_out
from benchmarks.judgement import expect_finite
from benchmarks.methods import METHODS
from benchmarks.names import expect_known
from benchmarks.origin import origin_of
from benchmarks.settings import SETTINGS, Setting
from benchmarks.training import build_strategy
from benchmarks.whole_files import save_json

RECORD = "training.json"


@dataclasses.dataclass(frozen=True)
class StudiedTraining:
    """A training, done or to be done.

    Attributes:
        method: Of `METHODS`; one that learns experience after experience.
        setting: Of `SETTINGS`; the method runs with its hyperparameters there.
        seed: Of network, order of samples and views.
        num_experiences: To learn, of those of the stream; None: those of the setting.
        epochs: An experience; None: those of the setting.

    Raises:
        ValueError: An unknown name, or a method or setting that does not suit.
    """

    method: str
    setting: str
    seed: int
    num_experiences: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        chosen = METHODS[expect_known("method", self.method, METHODS)]
        expect_held_out(expect_known("setting", self.setting, SETTINGS))
        own_features = self.method.startswith("stl") or self.method == "icarl"
        own_features |= self.method.endswith("-gaussian")
        if chosen.needs_task_labels or chosen.learns_at_once or own_features:
            raise ValueError(
                "Expected a method that learns experience after experience, is not told the task, "
                f"and predicts by linear heads on one extractor, got {self.method}."
            )
        self._cell.hyperparameters  # noqa: B018 - refuses what was never chosen

    @property
    def _cell(self) -> Cell:
        return Cell(self.method, self.setting, self.seed)

    @property
    def plan(self) -> Setting:
        """The setting as this training takes it."""
        plan = SETTINGS[self.setting]
        return dataclasses.replace(
            plan,
            epochs=self.epochs or plan.epochs,
            num_experiences=self.num_experiences or plan.num_experiences,
        )

    @property
    def name(self) -> str:
        """Of its files."""
        given = {"experiences": self.num_experiences, "epochs": self.epochs}
        changes = [f"{name}={value}" for name, value in given.items() if value is not None]
        return "_".join([self.setting, self.method, *changes, f"seed{self.seed}"])

    @property
    def words(self) -> dict[str, Any]:
        """What it is, as results tell it."""
        return {
            "method": self.method,
            "setting": self.setting,
            "seed": self.seed,
            "hyperparameters": self._cell.hyperparameters,
            "epochs": self.plan.epochs,
            "num_experiences": self.plan.num_experiences,
        }

    def stream(self, dataset_root: str | None) -> Any:
        """Its stream; the validation split is held out, so that one training serves all uses.

        Raises:
            ValueError: It has fewer experiences than are to be learned.
        """
        stream = self.plan.make_stream(
            augment=not METHODS[self.method].draws_views,
            validation_fraction=0.1,
            dataset_root=dataset_root,
        )
        most, wanted = len(stream.train_stream), self.plan.num_experiences
        if wanted > most:
            raise ValueError(
                f"Expected at most {most} experiences of {self.setting}, got {wanted}."
            )
        return stream

    def done(self, folder: Path) -> bool:
        """Whether its networks are in a folder.

        Raises:
            ValueError: Those of another training are.
        """
        path = folder / RECORD
        if not path.exists():
            return False
        found = json.loads(path.read_text(encoding="utf-8"))["words"]
        if found != self.words:
            raise ValueError(
                f"Expected the networks of {self.words} in {folder}, got those of {found}: remove "
                "the folder, or choose another one."
            )
        return True

    def run(
        self, folder: Path, *, dataset_root: str | None, device: str, command: list[str]
    ) -> None:
        """Train, and keep the network after each experience in a folder; the record comes last.

        Raises:
            ValueError: Another process trains into the folder.
        """
        origin, words = origin_of(command, device), self.words  # as they are now
        lock = lock_folder(folder)
        stream = self.stream(dataset_root)
        seed_everything(self.seed)
        plugin = TimedGaussian()
        cell, options = self._cell, words["hyperparameters"]
        strategy: Any = build_strategy(cell, self.plan, options, plugins=[plugin], device=device)
        seconds = 0.0
        for step, experience in enumerate(stream.train_stream[: self.plan.num_experiences]):
            start = time.perf_counter()
            strategy.train(experience, eval_streams=[])
            seconds += time.perf_counter() - start
            expect_finite(strategy, step + 1)
            torch.save(_state_of(strategy.model), folder / f"experience{step}.pt")
            print(f"learned {step + 1} experiences", flush=True)
        record = {
            "words": words,
            "training_seconds": seconds - plugin.seconds,
            "plugin_seconds": plugin.seconds,
            "provenance": origin,
        }
        save_json(record, folder / RECORD)
        del lock

    def network(self, step: int, folder: Path, *, device: str) -> LearnedNetwork:
        """The network after an experience, from a folder."""
        path = folder / f"experience{step}.pt"
        state = torch.load(path, map_location="cpu", weights_only=True)
        classes = state.pop("classes").tolist()
        network = self.plan.make_network(len(classes))
        network.load_state_dict(state)
        return LearnedNetwork(network, classes, device)


class LearnedNetwork:
    """A network as a method left it after an experience.

    Args:
        network: (B, C, H, W) -> (B, K); of DLCPA the stable learner with its classifiers.
        classes: Labels of the K classes.
        device: Of the extractor.

    Attributes:
        extractor: Its features.
        head: Its last layer, (B, D) -> (B, K), on the CPU.
    """

    def __init__(self, network: nn.Module, classes: list[int], device: str):
        self.extractor = FrozenExtractor(network).to(device)
        self.head = _head_of(network)
        self.classes = classes


class TimedGaussian(GaussianClassifierPlugin):
    """The plugin, with the seconds that its work has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Time it."""
        start = time.perf_counter()
        super().before_training_exp(strategy, **kwargs)
        self.seconds += time.perf_counter() - start

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Time it."""
        start = time.perf_counter()
        super().after_training_exp(strategy, **kwargs)
        self.seconds += time.perf_counter() - start


def _state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Of the plain network that predicts with the trained heads, and the labels of its classes."""
    if isinstance(model, DualLearner):
        model.gaussian = None  # the plugin makes it anew after the next experience
        labels = torch.tensor(sorted(label for _, label in model.classifiers.keys))
        return {**model.stable_model().state_dict(), "classes": labels}
    return {**model.state_dict(), "classes": torch.arange(_head_of(model).out_features)}


def _head_of(model: nn.Module) -> nn.Linear:
    head = model.get_submodule(find_head(model))
    assert isinstance(head, nn.Linear)
    return head
