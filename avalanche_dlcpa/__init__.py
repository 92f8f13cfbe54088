"""DLCPA for Avalanche: exemplar-free continual learning with a dual learner.

Source of the method: Sun, Li, Wang and Geng, "Towards Plastic and Stable Exemplar-Free Incremental
Learning: A Dual-Learner Framework with Cumulative Parameter Averaging".
"""

from avalanche_dlcpa.alignment_plugin import ClassifierAlignmentPlugin
from avalanche_dlcpa.averaging_plugin import CumulativeParameterAveragingPlugin
from avalanche_dlcpa.divergence import NonFiniteLossError
from avalanche_dlcpa.dual_learner import DualLearner
from avalanche_dlcpa.gaussian_plugin import GaussianClassifierPlugin
from avalanche_dlcpa.random_states import seed_everything
from avalanche_dlcpa.self_supervised import SelfSupervisedHead
from avalanche_dlcpa.self_supervised_plugin import SelfSupervisedLossPlugin
from avalanche_dlcpa.single_task import SingleTaskStrategy
from avalanche_dlcpa.stable_loading import load_stable
from avalanche_dlcpa.strategy import DLCPAStrategy
from avalanche_dlcpa.views import PaperViews

__all__ = [
    "ClassifierAlignmentPlugin",
    "CumulativeParameterAveragingPlugin",
    "DLCPAStrategy",
    "DualLearner",
    "GaussianClassifierPlugin",
    "NonFiniteLossError",
    "PaperViews",
    "SelfSupervisedHead",
    "SelfSupervisedLossPlugin",
    "SingleTaskStrategy",
    "load_stable",
    "seed_everything",
]
