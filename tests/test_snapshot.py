"""What plugins and metrics remember, told as plain data and brought back."""

import collections
import io
import re
from typing import ClassVar

import numpy as np
import pytest
import torch
from avalanche.evaluation.metrics import Accuracy, AverageMeanClassAccuracy, CPUUsage, Mean
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.utils import ParamData
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CyclicLR

from avalanche_dlcpa.snapshot import NoPlainStateError, capture, objects_in, plain, restore


class Memory(SupervisedPlugin):
    def __init__(self, value=None):
        super().__init__()
        self.value = value


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def round_trip(value, fresh=None):
    memory = Memory(fresh)
    assert restore(memory, through_a_file(capture(Memory(value), "Memory"))) is memory
    return memory.value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.1,
        "word",
        b"bytes",
        [1, [2.5, "x"]],
        (1, (2, 3)),
        {1, 2},
        frozenset("ab"),
        {"a": {(0, 1): [None]}, 2: {3}},
        collections.Counter("aab"),
        collections.deque([1, 2]),
    ],
)
def test_plain_values_come_back_as_they_were(value):
    found = round_trip(value)
    assert found == value
    assert not isinstance(value, list | tuple | set | str) or type(found) is type(value)


def test_arrays_and_tensors_come_back():
    for array in (np.arange(3), np.random.rand(2, 2).astype(np.float32)):
        found = round_trip(array)
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)
    assert round_trip(np.float64(0.5)) == 0.5
    assert torch.equal(round_trip(torch.eye(2)), torch.eye(2))


def test_a_default_dict_keeps_its_factory_and_its_metrics():
    def means(**values):
        made = collections.defaultdict(Mean)
        for name, value in values.items():
            made[name].update(value, 2)
        return made

    found = round_trip(means(a=1.0, b=3.0), means(c=9.0))
    assert {name: mean.result() for name, mean in found.items()} == {"a": 1.0, "b": 3.0}
    assert found["new"].result() == 0


def test_a_metric_of_avalanche_is_made_where_none_was():
    accuracy = Accuracy()
    accuracy.update(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 0]))
    found = round_trip({"x": accuracy}, {})["x"]
    found.update(torch.tensor([1, 1]), torch.tensor([1, 1]))  # and counts on
    assert found.result() == 5 / 6


@pytest.mark.parametrize(
    "make", [list, set, dict.fromkeys, lambda items: collections.deque(items, maxlen=2)]
)
def test_what_a_script_holds_as_well_stays_the_same_object(make):
    fresh = make([])
    assert round_trip(make([1, 2]), fresh) is fresh
    assert fresh == make([1, 2])


def test_a_list_of_the_class_is_not_written_into():
    class Common(SupervisedPlugin):
        seen: ClassVar[list[int]] = []

    worn, fresh = Common(), Common()
    worn.seen = [3]
    restore(fresh, through_a_file(capture(worn, "Common")))
    assert (fresh.seen, Common.seen) == ([3], [])


def test_an_object_with_a_state_dict_speaks_for_itself():
    layer, fresh = nn.Linear(2, 2), nn.Linear(2, 2)
    assert round_trip(layer, fresh) is fresh
    assert torch.equal(fresh.weight, layer.weight)
    with pytest.raises(ValueError, match="hold the same objects as in the checkpoint, got NoneT"):
        round_trip(layer, None)


def test_what_is_restored_twice_is_never_the_saved_one_itself():
    for value, add in ((torch.zeros(2), torch.ones(2)), (np.zeros(2), np.ones(2))):
        saved = capture(Memory(value), "Memory")
        for _ in range(2):
            memory = Memory()
            restore(memory, saved)
            memory.value += add
            assert memory.value.tolist() == [1, 1]


def test_a_scheduler_that_takes_out_what_it_reads_is_restored_twice():
    def schedule():
        return CyclicLR(SGD([nn.Parameter(torch.zeros(1))], lr=0.1), 0.1, 1.0, step_size_up=3)

    worn = schedule()
    worn.optimizer.step()
    worn.step()
    saved, fresh = capture(Memory(worn), "Memory"), schedule()
    for _ in range(2):
        restore(Memory(fresh), saved)
    assert fresh.get_last_lr() == worn.get_last_lr() != schedule().get_last_lr()


def test_importances_of_avalanche_come_back():
    worn = ParamData("fc.weight", init_tensor=torch.eye(2))
    found = round_trip({"fc.weight": worn}, None)["fc.weight"]
    assert (found.name, found.shape) == (worn.name, worn.shape)
    assert torch.equal(found.data, worn.data)


def test_a_metric_that_is_made_has_its_factories():
    worn = AverageMeanClassAccuracy()
    worn.update(torch.tensor([0, 1]), torch.tensor([0, 1]), 0)
    found = round_trip({"test": worn}, {})["test"]
    found.next_experience()  # appends to a list that none has made yet
    assert found.result() == {0: 0.5}


def test_parts_of_the_strategy_and_what_is_measured_now_are_left_alone():
    layer, usage = nn.Linear(2, 2), CPUUsage()
    usage.update()  # from now on it holds a handle of this process
    saved = capture(Memory([layer, usage]), "Memory", parts=[id(layer)])
    fresh = Memory([None, CPUUsage()])
    restore(fresh, through_a_file(saved))
    assert fresh.value[0] is None
    assert fresh.value[1]._first_update


def test_objects_that_speak_for_themselves_are_found():
    layer = nn.Linear(1, 1)
    metrics = EvaluationPlugin(Memory(), loggers=[])
    value = [layer, {"a": (1, layer)}, Memory({"b": layer}), metrics, 3]
    assert list(objects_in(capture(value, "x"), "x")) == ["x[0]", "x[1]['a'][1]", "x[2].value['b']"]


def test_numbers_of_numpy_become_plain():
    state = {"lr": np.float64(0.1), "sizes": (np.int32(3), [np.bool_(True)]), np.int64(2): None}
    found = through_a_file(plain(state, "state"))
    assert found == {"lr": 0.1, "sizes": (3, [True]), 2: None}
    assert type(plain(collections.Counter("ab"), "state")) is collections.Counter
    with pytest.raises(NoPlainStateError, match=r"got state\['a'\]\[1\] of type ndarray"):
        plain({"a": [0, np.zeros(2)]}, "state")


def test_what_never_changes_is_left_alone():
    for constant in (len, lambda: 3, int, torch.device("cpu"), io):
        assert round_trip(constant, constant) is constant


def test_a_type_of_numbers_that_was_set_on_the_way_comes_back():
    assert round_trip(torch.bfloat16, None) is torch.bfloat16


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), r"Memory.value of type object"),
        ([0, iter([])], r"Memory.value\[1\] of type list_iterator"),
        ({"k": {object(): 1}}, r"Memory.value\['k'\] \(a key\) of type object"),
        (torch.Generator(), "Memory.value of type Generator"),
    ],
)
def test_anything_else_is_refused_by_its_path(value, path):
    with pytest.raises(NoPlainStateError, match=path):
        capture(Memory(value), "Memory")


@pytest.mark.parametrize(
    "name", ["subprocess.Popen", "avalanche.evaluation.metrics.cpu_usage.Process"]
)
def test_a_class_that_a_file_names_is_made_only_if_it_is_a_metric_of_avalanche(name):
    state = {"kind": "object", "class": name, "items": {}}
    with pytest.raises(ValueError, match=f"got none for one of {re.escape(name)}"):
        restore(None, state)
