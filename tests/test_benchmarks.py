import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from avalanche_dlcpa import NonFiniteLossError
from benchmarks import demo, run
from benchmarks.cells import Cell
from benchmarks.hyperparameters import hyperparameters_of
from benchmarks.judgement import expect_finite
from benchmarks.methods import METHODS
from benchmarks.origin import PACKAGES
from benchmarks.settings import SETTINGS
from benchmarks.views import ShiftsAndNoise
from benchmarks.whole_files import save_json

ROOT = Path(__file__).parents[1]
TWIN = "digits-cifar100-10"


@pytest.mark.parametrize("method", ["naive", "dlcpa-mocov2"])
def test_a_run_gives_the_whole_matrices_and_numbers_that_follow_from_them(method):
    cell = Cell(method, TWIN, 3)
    result = run.run_cell(cell)
    num_tasks = cell.num_experiences
    for scenario in ("class_il", "task_il"):
        summary = result[scenario]
        matrix = np.array(summary["accuracy_matrix"], dtype=float)
        assert matrix.shape == (num_tasks, num_tasks)
        assert np.isnan(matrix[np.triu_indices(num_tasks, 1)]).all()
        assert summary["ACC"] == pytest.approx(matrix[-1].mean())
        assert summary["BWT"] == pytest.approx((matrix[-1] - matrix.diagonal())[:-1].mean())
    assert result["seed"] == 3
    assert result["hyperparameters"] == hyperparameters_of(method, "digits")
    assert result["provenance"]["versions"].keys() == set(PACKAGES)
    machine, *_, instructions = result["provenance"]["processor"].split()
    assert machine == platform.machine()
    assert instructions == torch.backends.cpu.get_cpu_capability()
    assert result["provenance"]["command"].endswith(f"--method {method} --setting {TWIN} --seed 3")
    assert result["training_seconds"] > 0


def test_the_confusion_matrix_counts_the_answers_of_the_last_evaluation():
    result = run.run_cell(Cell("naive", TWIN))
    counts = np.array(result["class_il"]["confusion_matrix"])
    last = result["class_il"]["accuracy_matrix"][-1]
    for accuracy, classes in zip(last, result["classes"], strict=True):
        assert counts[classes, classes].sum() / counts[classes].sum() == pytest.approx(accuracy)
    assert counts.sum() == sum(len(e.dataset) for e in SETTINGS[TWIN].make_stream().test_stream)


def test_joint_learning_has_a_last_row_and_no_backward_transfer():
    result = run.run_cell(trial("joint", lr=0.03))
    matrix = np.array(result["class_il"]["accuracy_matrix"], dtype=float)
    assert np.isfinite(matrix[-1]).all()
    assert np.isnan(matrix[:-1]).all()
    assert result["class_il"]["BWT"] is None
    assert result["class_il"]["ACC"] == pytest.approx(matrix[-1].mean())


def trial(method, **values):
    return Cell(method, TWIN, 0, tuple(sorted(values.items())), validation=True)


def test_memory_counts_what_a_method_carries_along():
    cells = [trial("naive", lr=0.01), trial("stl", lr=0.01)]
    cells += [trial(name, lr=0.01, strength=1.0) for name in ("lwf", "ewc")]
    kept = {cell.method: run.run_cell(cell)["memory"]["kept_bytes"] for cell in cells}
    network = SETTINGS[TWIN].make_network(10)
    weights = sum(tensor.nbytes for tensor in network.state_dict().values())
    assert weights <= kept["naive"] < 1.5 * weights
    assert kept["naive"] + 0.9 * weights < kept["lwf"]  # the teacher
    num_tasks = SETTINGS[TWIN].num_tuning_experiences
    assert kept["naive"] + 1.8 * num_tasks * weights < kept["ewc"]  # importances and weights
    assert kept["naive"] + 0.8 * (num_tasks - 1) * weights < kept["stl"]  # a network a task


def test_the_same_seed_gives_the_same_numbers():
    first, second = (run.run_cell(Cell("dlcpa-mocov2", TWIN, 1)) for _ in range(2))
    assert first["class_il"] == second["class_il"]
    assert first["task_il"] == second["task_il"]


@pytest.mark.parametrize("method", ["naive", "linear-probe", "loss-surface"])
def test_weights_that_are_not_finite_are_no_result(method):
    with pytest.raises(NonFiniteLossError, match="Expected finite weights after 1 experiences"):
        run.run_cell(Cell(method, TWIN, 0, (("lr", 1e6),)))


def test_statistics_that_are_not_finite_are_no_result():
    model = torch.nn.BatchNorm2d(3)
    expect_finite(SimpleNamespace(model=model), 1)
    model.running_var[0] = float("inf")
    with pytest.raises(NonFiniteLossError, match="Expected finite weights after 1 experiences"):
        expect_finite(SimpleNamespace(model=model), 1)


def test_a_hyperparameter_that_a_method_does_not_have_is_named(tmp_path, monkeypatch):
    words = ["run", "--method", "naive", "--setting", TWIN, "--set", "strength=1"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="Expected hyperparameters that naive has, got strength:"):
        run.main()
    assert not list(tmp_path.iterdir())


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    good = {"method": "naive", "rows": [[1, 2], [3, None]]}
    path = save_json(good, tmp_path / "results" / "a.json")
    for bad in (object(), float("nan")):
        with pytest.raises((TypeError, ValueError)):
            save_json({**good, "value": bad}, path)
    assert json.loads(path.read_text()) == good
    assert "[ 1, 2 ]" in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_demo_prints_one_table_and_writes_all_that_it_names(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo", "--setting", TWIN, "--out", str(tmp_path)])
    demo.main()
    printed = capsys.readouterr().out
    table, _, named = printed.partition("wrote\n")
    for title in (METHODS[method].title for method in demo.METHODS):
        assert re.search(rf"^{re.escape(title)}( +-?\d+\.\d\d){{4}} +\d+$", table, re.MULTILINE)
    paths = [Path(line.strip()) for line in named.splitlines()]
    assert all(path.stat().st_size > 100 for path in paths)
    assert {path.suffix for path in paths} == {".json", ".png", ".html", ".md", ".tex"}
    runs = [path for path in paths if path.suffix == ".json"]
    assert len(runs) == len(demo.METHODS)

    before = [path.read_bytes() for path in runs]
    runs[-1].unlink()
    demo.main()
    again = capsys.readouterr().out
    there, _, named = again.partition("were not run again\n")[2].partition("wrote\n")
    assert [Path(line.strip()) for line in there.splitlines() if line] == runs[:-1]
    assert Path(named.splitlines()[0].strip()) == runs[-1]
    assert [path.read_bytes() for path in runs[:-1]] == before[:-1]

    runs[0].write_text("{}")
    with pytest.raises(SystemExit):
        demo.main()
    assert "to be a result of benchmarks.run, got another JSON: move it away" in (
        capsys.readouterr().err
    )
    assert runs[0].read_text() == "{}"


def test_the_demo_names_the_nearest_setting(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo", "--setting", "digit", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        demo.main()
    assert "Expected a setting by name, got 'digit'. Did you mean 'digits'?" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("package", ["optuna", "psutil", "tqdm"])
def test_packages_that_are_missing_are_told_with_the_command_that_installs_them(package):
    code = (
        "import importlib.util; find = importlib.util.find_spec;"
        f"importlib.util.find_spec = lambda name: None if name == '{package}' else find(name);"
        "import benchmarks"
    )
    words = [sys.executable, "-c", code]
    answer = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert answer.stderr.splitlines()[-1] == (
        f"ImportError: Expected the packages of the benchmarks, got none by the name of {package}: "
        'install them with `pip install ".[benchmarks]"`.'
    )


def test_digits_are_shifted_each_by_a_pixel_at_most():
    x = torch.arange(64.0).view(1, 1, 8, 8).repeat(400, 1, 1, 1)
    view1, view2 = ShiftsAndNoise(noise=0)(x)
    shifts = view1[:, 0, 4, 4] - x[:, 0, 4, 4]
    assert set(shifts.tolist()) == {dy * 8 + dx for dy in (-1, 0, 1) for dx in (-1, 0, 1)}
    assert (view1 != view2).flatten(1).any(1).float().mean() > 0.7
    down = view1[shifts == 8][0, 0]  # every row but the last comes from the next one
    assert torch.equal(down[:-1], x[0, 0, 1:])
    assert torch.equal(down[-1], x[0, 0, -1])
    noisy, _ = ShiftsAndNoise(noise=0.1)(torch.zeros(100, 1, 8, 8))
    assert noisy.std().item() == pytest.approx(0.1, rel=0.1)
