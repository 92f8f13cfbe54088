import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from avalanche.benchmarks.utils.data import AvalancheDataset

from benchmarks import demo, report, run, tune
from benchmarks.hyperparameters import HYPERPARAMETERS
from benchmarks.methods import METHODS
from benchmarks.settings import SETTINGS
from benchmarks.views import ShiftsAndNoise

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture
def short(monkeypatch):
    """The digits setting with one epoch and two experiences."""
    plan = dataclasses.replace(SETTINGS["digits"], epochs=1, num_experiences=2)
    monkeypatch.setitem(SETTINGS, "digits", plan)


def test_every_setting_has_hyperparameters_for_every_method():
    assert HYPERPARAMETERS.keys() == SETTINGS.keys()
    assert all(chosen.keys() == METHODS.keys() for chosen in HYPERPARAMETERS.values())


@pytest.mark.parametrize("method", METHODS)
def test_a_run_gives_the_whole_matrices_and_numbers_that_follow_from_them(short, method):
    result = run.run_cell(method, "digits", seed=3)
    for scenario in ("class_il", "task_il"):
        summary = result[scenario]
        matrix = np.array(summary["accuracy_matrix"], dtype=float)
        assert matrix.shape == (2, 2)
        assert np.isnan(matrix[0, 1])
        assert summary["ACC"] == pytest.approx((matrix[1, 0] + matrix[1, 1]) / 2)
        assert summary["BWT"] == pytest.approx(matrix[1, 0] - matrix[0, 0])
    assert result["seed"] == 3
    assert result["hyperparameters"] == HYPERPARAMETERS["digits"][method]
    assert result["provenance"]["versions"].keys() == set(run.PACKAGES)
    assert result["training_seconds"] > 0


def test_the_same_seed_gives_the_same_numbers(short):
    first, second = (run.run_cell("dlcpa-mocov2", "digits", seed=1) for _ in range(2))
    assert first["class_il"] == second["class_il"]
    assert first["task_il"] == second["task_il"]


@pytest.mark.parametrize(("validation", "times_read"), [(True, 0), (False, 3)])
def test_choosing_hyperparameters_never_evaluates_the_test_set(
    short, monkeypatch, validation, times_read
):
    read = []
    plain = AvalancheDataset.eval
    plan = SETTINGS["digits"]

    def watched(**options):
        stream = plan.make_stream(**options)
        test = [experience.dataset for experience in stream.test_stream]

        def eval_(dataset):
            read.extend(0 for other in test if other is dataset)
            return plain(dataset)

        monkeypatch.setattr(AvalancheDataset, "eval", eval_)
        return stream

    monkeypatch.setitem(SETTINGS, "digits", dataclasses.replace(plan, make_stream=watched))
    result = run.run_cell("naive", "digits", seed=0, validation=validation)
    assert result["judged_on"] == ("valid_stream" if validation else "test_stream")
    assert len(read) == times_read


def test_the_best_leads_class_il_among_the_near_best_in_task_il():
    def row(seed, words, class_il, task_il):
        return {
            "setting": "digits",
            "method": "ewc",
            "seed": seed,
            "hyperparameters": words,
            "class_il_ACC": class_il,
            "task_il_ACC": task_il,
        }

    rows = [
        row("0", '{"lr": 1}', "0.1", "0.91"),
        row("1", '{"lr": 1}', "0.3", "0.89"),
        row("0", '{"lr": 2}', "0.25", "0.895"),
        row("0", '{"lr": 3}', "0.9", "0.88"),
    ]
    assert tune.best(rows, "digits", "ewc") == {"lr": 2}
    with pytest.raises(ValueError, match="Expected tuning rows of lwf in digits, got none"):
        tune.best(rows, "digits", "lwf")


def test_hyperparameters_are_those_that_tuning_chose():
    rows = tune.read_rows()
    for setting, chosen in HYPERPARAMETERS.items():
        for method, hyperparameters in chosen.items():
            assert hyperparameters == tune.best(rows, setting, method), (setting, method)


def test_a_result_is_written_whole_or_not_at_all(tmp_path):
    good = {"setting": "digits", "method": "naive", "seed": 0, "value": 1}
    path = run.save_result(good, tmp_path)
    with pytest.raises(TypeError):
        run.save_result({**good, "value": object()}, tmp_path)
    assert json.loads(path.read_text()) == good
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_demo_prints_one_table_and_writes_all_that_it_names(
    short, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path)])
    demo.main()
    printed = capsys.readouterr().out
    table, _, named = printed.partition("wrote\n")
    for title in (entry.title for entry in METHODS.values()):
        assert re.search(rf"^{re.escape(title)}( +-?\d+\.\d\d){{4}} +\d+$", table, re.MULTILINE)
    paths = [Path(line.strip()) for line in named.splitlines()]
    assert len(paths) == 2 * len(METHODS) + 2
    assert all(path.stat().st_size > 500 for path in paths)
    assert {path.suffix for path in paths} == {".json", ".png", ".html"}


def test_the_page_holds_everything_and_loads_nothing(short, tmp_path):
    results = [run.run_cell("naive", "digits", seed=0)]
    page = report.write_report(results, tmp_path)[-1].read_text()
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r"(src|href)=\"(?!data:)|https?:|<script|@import|url\(", page)
    for cell in report.rows(results)[0]:
        assert f"<td>{cell}</td>" in page


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


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Expected results in .*got none: run benchmarks.run"):
        report.write_report([], tmp_path)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_tables_of_the_readme_are_those_of_the_results(setting):
    results = report.load_results(RESULTS, setting)
    assert [r["method"] for r in results] == list(METHODS)
    assert all(r["hyperparameters"] == HYPERPARAMETERS[setting][r["method"]] for r in results)
    assert report.markdown_table(results) in (ROOT / "README.md").read_text()
