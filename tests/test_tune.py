"""Hyperparameters are chosen on the validation split, from every combination of a grid."""

import csv
import dataclasses
import functools
import json
import sys
from types import SimpleNamespace

import pytest
from avalanche.benchmarks.utils.data import AvalancheDataset

from benchmarks import compare, run, trials, tune
from benchmarks.cells import FORMAT, Cell, result_path
from benchmarks.grids import GRIDS
from benchmarks.hyperparameters import CHOSEN, PUBLISHED
from benchmarks.origin import commit
from benchmarks.pool import Progress, run_in_processes
from benchmarks.settings import SETTINGS
from benchmarks.trials import expect_as_many_seeds
from benchmarks.whole_files import save_json

TWIN = "digits-cifar100-10"


@pytest.mark.parametrize("validation", [True, False])
def test_choosing_hyperparameters_never_evaluates_the_test_set(monkeypatch, validation):
    read = []
    plain = AvalancheDataset.eval
    plan = SETTINGS[TWIN]

    def watched(**options):
        stream = plan.make_stream(**options)
        test = [experience.dataset for experience in stream.test_stream]

        def eval_(dataset):
            read.extend(0 for other in test if other is dataset)
            return plain(dataset)

        monkeypatch.setattr(AvalancheDataset, "eval", eval_)
        return stream

    monkeypatch.setitem(SETTINGS, TWIN, dataclasses.replace(plan, make_stream=watched))
    cell = Cell("naive", TWIN, 0, (("lr", 0.01),), validation=validation)
    result = run.run_cell(cell)
    assert result["judged_on"] == ("valid_stream" if validation else "test_stream")
    learned = cell.num_experiences
    assert len(read) == (0 if validation else learned * (learned + 1) // 2)


@pytest.mark.parametrize("method", ["ewc", "replay", "stl-me-finetuned", "dlcpa-mocov2"])
def test_a_trial_needs_no_test_set(monkeypatch, method):
    plan = SETTINGS[TWIN]

    def without_test_set(**options):
        stream = plan.make_stream(**options)
        valid = getattr(stream, "valid_stream", None)
        return SimpleNamespace(train_stream=stream.train_stream, valid_stream=valid)

    whole = Cell(method, TWIN).hyperparameters
    cell = Cell(method, TWIN, 0, tuple(sorted(whole.items())), validation=True)
    expected = run.run_cell(cell)["task_il"]
    monkeypatch.setitem(SETTINGS, TWIN, dataclasses.replace(plan, make_stream=without_test_set))
    assert run.run_cell(cell)["task_il"] == expected
    with pytest.raises(AttributeError, match="test_stream"):
        run.run_cell(dataclasses.replace(cell, validation=False))


def test_a_method_whose_trial_broke_is_not_chosen():
    trials = [Cell(method, TWIN, validation=True) for method in ("naive", "ewc", "lwf")]
    failures = {trials[0]: "ended with 1: NonFiniteLossError: ...", trials[1]: "ended with -9"}
    assert tune.complete(["naive", "ewc", "lwf"], failures) == ["naive", "lwf"]


def trial_row(words, class_il, task_il, *, seed="0", method="ewc"):
    """A row of tuning.csv."""
    return {
        "setting": "digits",
        "method": method,
        "seed": seed,
        "hyperparameters": words,
        "class_il_ACC": class_il,
        "task_il_ACC": task_il,
        "commit": "0",
    }


def test_the_best_leads_class_il_among_the_near_best_in_task_il():
    rows = [
        trial_row('{"lr": 1}', "0.1", "0.91", seed="0"),
        trial_row('{"lr": 1}', "0.3", "0.89", seed="1"),
        trial_row('{"lr": 2}', "0.25", "0.895", seed="0"),
        trial_row('{"lr": 2}', "0.25", "0.895", seed="1"),
        trial_row('{"lr": 3}', "0.9", "0.88", seed="0"),
        trial_row('{"lr": 3}', "0.9", "0.88", seed="1"),
    ]
    assert trials.best(rows, "digits", "ewc", [0, 1])["hyperparameters"] == {"lr": 2}
    with pytest.raises(ValueError, match="Expected tuning rows of lwf in digits, got none"):
        trials.best(rows, "digits", "lwf", [0, 1])


def test_where_a_scenario_is_undefined_the_other_decides():
    rows = [
        trial_row(f'{{"lr": {lr}}}', "", task_il, method="packnet")
        for lr, task_il in ((1, "0.795"), (2, "0.8"), (3, "0.0"))
    ]
    found = trials.best(rows, "digits", "packnet", [0])
    assert found["hyperparameters"] == {"lr": 2}
    assert (found["class_il_ACC"], found["task_il_ACC"]) == (None, 0.8)


def test_what_would_be_chosen_by_one_seed_is_the_first_finalist():
    rows = [
        trial_row('{"lr": 1}', "0.1", "0.911"),
        trial_row('{"lr": 2}', "0.2", "0.905"),
        trial_row('{"lr": 3}', "0.9", "0.89"),  # the highest sum
        trial_row('{"lr": 4}', "0.1", "0.8"),
    ]
    ranked = trials.finalists(rows, "digits", "ewc", seed=0, count=4)
    assert [values["lr"] for values in ranked] == [2, 1, 3, 4]
    assert trials.best(rows, "digits", "ewc", [0])["hyperparameters"] == ranked[0]


def test_where_a_scenario_is_undefined_the_other_ranks_finalists():
    rows = [trial_row(f'{{"lr": {lr}}}', "", acc) for lr, acc in ((1, "0.895"), (2, "0.9"))]
    ranked = trials.finalists(rows, "digits", "ewc", seed=0, count=2)
    assert [values["lr"] for values in ranked] == [2, 1]


def test_a_trial_that_was_not_tried_with_every_seed_is_not_chosen():
    lucky = trial_row('{"lr": 1}', "0.99", "0.99")
    others = [trial_row('{"lr": 2}', "0.5", "0.5", seed=seed) for seed in ("0", "1")]
    for rows in ([lucky, *others], [lucky, lucky, *others]):  # one that two processes added
        assert trials.best(rows, "digits", "ewc", [0, 1])["hyperparameters"] == {"lr": 2}


def test_hyperparameters_are_those_that_tuning_chose():
    rows = trials.in_grids(trials.read_rows())
    chosen = json.loads(CHOSEN.read_text())
    assert chosen
    for setting, methods in chosen.items():
        for method, entry in methods.items():
            found = trials.best(rows, setting, method, entry["seeds"])
            assert entry == found, (setting, method)


def test_trials_of_earlier_grids_are_kept_and_not_chosen_from(tmp_path, monkeypatch):
    grids = [{"lr": [0.1, 0.2], "strength": [1.0]}, {"lr": [0.3]}]
    monkeypatch.setitem(GRIDS, "digits", {"ewc": grids})
    joined = '{"lr": 0.2, "strength": 1.0}'
    of_today = [trial_row(words, "0.1", "0.5") for words in ('{"lr": 0.3}', joined)]
    earlier = [trial_row(words, "0.9", "0.9") for words in ('{"lr": 0.1}', '{"lr": 0.4}')]
    other = [trial_row('{"lr": 0.3}', "0.9", "0.9", method="lwf")]
    assert trials.in_grids([*earlier, *of_today, *other]) == of_today
    monkeypatch.setattr(trials, "read_rows", lambda: [*earlier, *of_today])
    trials.choose("digits", ["ewc"], [0], tmp_path / "chosen.json")
    entry = json.loads((tmp_path / "chosen.json").read_text())["digits"]["ewc"]
    assert (entry["hyperparameters"], entry["num_trials"]) == ({"lr": 0.3}, 2)


def test_nothing_is_chosen_where_every_trial_diverged(tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, "digits", {name: [{"lr": [1, 2]}] for name in ("ewc", "lwf")})
    rows = [trial_row(f'{{"lr": {lr}}}', "0.0", "0.0") for lr in (1, 2)]
    rows.append(trial_row('{"lr": 1}', "0.1", "0.2", method="lwf"))
    monkeypatch.setattr(trials, "read_rows", lambda: rows)
    path = tmp_path / "chosen.json"
    found, refused = trials.choose("digits", ["ewc", "lwf"], [0], path)
    assert list(found) == list(json.loads(path.read_text())["digits"]) == ["lwf"]
    assert refused == {
        "ewc": "Expected a trial of ewc in digits that did not diverge, got 2 that did: lower the "
        "learning rates of its grid in grids.py."
    }
    for methods in (["ewc"], []):
        trials.choose("digits", methods, [0], tmp_path / "none.json")
        assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(("module", "code"), [(tune, "nothing was chosen for ewc"), (compare, 0)])
def test_the_commands_say_where_every_trial_diverged(module, code, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "tune", lambda *_, **__: {})
    monkeypatch.setattr(module, "choose", lambda *_: ({}, {"ewc": "all of ewc diverged"}))
    words = ["--methods", "ewc", "--jobs", "1"]
    if module is compare:
        monkeypatch.setattr(compare, "has_values", lambda method, setting: False)
        words += ["--tune", "--settings", "digits", "--seeds", "0", "--out", str(tmp_path)]
        monkeypatch.setattr(compare, "run_grid", lambda cells, run: {})
    else:
        words += ["--setting", "digits", "--seeds", "0", "1", "2"]
    monkeypatch.setattr(sys, "argv", [module.__name__, *words])
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == code
    assert "failed: all of ewc diverged" in capsys.readouterr().out


def test_optuna_goes_through_every_combination_once():
    grid = {"lr": [0.1, 0.2, 0.3], "strength": [1, 2]}
    every = [{"lr": lr, "strength": strength} for lr in grid["lr"] for strength in (1, 2)]
    proposed = tune.propose([grid, {"lr": [9.0]}])
    assert sorted(map(str, proposed)) == sorted(map(str, [*every, {"lr": 9.0}]))
    few = tune.propose([grid], most=4)
    assert len({str(values) for values in few}) == 4
    assert few == tune.propose([grid], most=4)


def test_what_was_published_is_not_tuned_unless_it_is_asked_for():
    assert set(tune.to_tune("cifar100-10")) >= {"naive", "ewc", "lwf", "joint"}
    assert not set(tune.to_tune("cifar100-10")) & set(PUBLISHED["cifar100-10"])
    assert tune.to_tune("digits") == list(GRIDS["digits"])  # nothing was published for digits
    assert tune.to_tune("mnist-5") == []


def test_tuning_adds_a_row_a_trial_and_runs_none_again(tmp_path, monkeypatch):
    grids = {"naive": [{"lr": [0.01, 1e30]}], "naive-heads": [{"lr": [1e30]}]}
    monkeypatch.setitem(GRIDS, TWIN, grids)
    path = tmp_path / "tuning.csv"
    asked = []

    def run_here(cells):
        asked.append(list(cells))
        return run_in_processes(cells, tmp_path, jobs=1, options=[])

    failures = tune.tune(TWIN, grids, [0], run_here, folder=tmp_path, path=path)
    rows = trials.read_rows(path)
    found = {(row["method"], json.loads(row["hyperparameters"])["lr"]): row for row in rows}
    assert float(found["naive", 0.01]["task_il_ACC"]) > 0.4
    assert [float(row["task_il_ACC"]) for row in rows].count(0) == 2  # diverged: results, too
    assert found["naive", 1e30]["class_il_ACC"] == "0.0"
    assert found["naive-heads", 1e30]["class_il_ACC"] == ""  # it has none
    assert {row["commit"] for row in rows} == {commit()}
    assert len(failures) == 2
    for reason in failures.values():
        assert "NonFiniteLossError" in reason
        assert "logs/" not in reason  # which are gone with the folder
    tune.tune(TWIN, grids, [0], run_here, folder=tmp_path, path=path)
    assert [len(cells) for cells in asked] == [3, 0]
    assert all(cell.validation for cell in asked[0])
    assert trials.best(rows, TWIN, "naive", [0])["hyperparameters"] == {"lr": 0.01}


def test_no_row_is_made_of_a_result_on_the_test_set(tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, TWIN, {"naive": [{"lr": [0.01]}]})

    def on_the_test_set(cells):
        for cell in cells:
            accuracy = {"ACC": 0.5}
            found = {"class_il": accuracy, "task_il": accuracy, "provenance": {"commit": "0"}}
            found |= {"judged_on": "test_stream", "format": FORMAT}
            save_json(found, result_path(cell, tmp_path))
            yield [Progress(cell, cell.num_experiences, ended=True)]

    path = tmp_path / "tuning.csv"
    with pytest.raises(ValueError, match="judged on valid_stream, got test_stream"):
        tune.tune(TWIN, ["naive"], [0], on_the_test_set, folder=tmp_path, path=path)
    assert not path.exists()


def test_a_method_without_a_grid_is_told_from_one_that_there_is_not(tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, TWIN, {"naive": [{"lr": [0.01]}]})

    def never(cells):
        raise AssertionError

    for method, message in (
        ("ewc", f"a grid in {TWIN}, got ewc, which has no grid in grids.py"),
        ("niave", "got 'niave'"),
    ):
        with pytest.raises(ValueError, match=message):
            tune.tune(TWIN, [method], [0], never, folder=tmp_path, path=tmp_path / "tuning.csv")


@pytest.mark.parametrize(("setting", "message"), [
    ("lab-mnist-5", "got 'lab-mnist-5', which runs with what is chosen in lab-cifar100-10: tune"),
    ("lab-tinny-10", "Expected a setting with a grid by name, got 'lab-tinny-10'"),
])  # fmt: skip
def test_a_setting_that_is_not_tuned_is_told_from_one_that_there_is_not(
    setting, message, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["tune", "--setting", setting, "--methods", "naive"])
    with pytest.raises(SystemExit):
        tune.main()
    assert message in capsys.readouterr().err


def test_ctrl_c_while_tuning_says_how_to_go_on(monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune, "tune", stopped)
    monkeypatch.setattr(sys, "argv", ["tune", "--setting", "digits", "--methods", "packnet"])
    with pytest.raises(SystemExit, match="has what was tried, and the same command goes on"):
        tune.main()


def test_where_no_row_can_be_added_nothing_is_tried(tmp_path, monkeypatch, capsys):
    def run(cells):
        raise AssertionError(f"{cells} were run")

    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "tuning.csv"
    with pytest.raises(OSError, match="file"):
        tune.tune("digits", ["naive"], [0], run, folder=tmp_path, path=path)
    monkeypatch.setattr(tune, "tune", functools.partial(tune.tune, path=path))
    words = ["tune", "--setting", "digits", "--methods", "naive", "--seeds", "0", "1", "2"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        tune.main()
    assert "tune: error: " in capsys.readouterr().err


def test_a_choice_by_several_seeds_is_not_replaced_by_one_of_fewer(monkeypatch, capsys):
    before = CHOSEN.read_text()
    assert json.loads(before)["digits"]["naive"]["seeds"] == [0, 1, 2]
    monkeypatch.setattr(sys, "argv", ["tune", "--setting", "digits", "--methods", "naive"])
    with pytest.raises(SystemExit):
        tune.main()
    said = capsys.readouterr().err
    assert "Expected --seeds 0 1 2, by which the values of naive in digits" in said
    assert CHOSEN.read_text() == before
    expect_as_many_seeds("digits", ["naive"], [2, 1, 0])
    expect_as_many_seeds("digits", ["packnet"], [0])


def test_finalists_alone_are_tried_with_further_seeds(tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, TWIN, {"naive": [{"lr": [0.01, 0.02, 0.03, 1e30]}]})
    path = tmp_path / "tuning.csv"

    def invent(cells):
        for cell in cells:
            lr = dict(cell.changes)["lr"]
            accuracy = {"ACC": {0.01: 0.3, 0.02: 0.5, 0.03: 0.4, 1e30: 0.0}[lr]}
            found = {"class_il": accuracy, "task_il": accuracy, "provenance": {"commit": "0"}}
            found |= {"judged_on": "valid_stream", "format": FORMAT}
            save_json(found, result_path(cell, tmp_path))
            yield [Progress(cell, cell.num_experiences, ended=True)]

    earlier = trial_row('{"lr": 0.5, "momentum": 0.9}', "0.9", "0.9", method="naive")
    with path.open("w", newline="") as file:  # of an earlier grid: it cannot be tried any more
        writer = csv.DictWriter(file, trials.FIELDS)
        writer.writeheader()
        writer.writerow({**earlier, "setting": TWIN})
    for _ in range(2):  # the second time, nothing is missing
        options = {"folder": tmp_path, "path": path, "num_finalists": 2}
        assert tune.tune(TWIN, ["naive"], [0, 1, 2], invent, **options) == {}
    rows = [
        (row["seed"], json.loads(row["hyperparameters"])["lr"]) for row in trials.read_rows(path)
    ]
    assert rows.pop(0) == ("0", 0.5)
    assert sorted(rows[:4]) == [("0", 0.01), ("0", 0.02), ("0", 0.03), ("0", 1e30)]
    assert sorted(rows[4:]) == [("1", 0.02), ("1", 0.03), ("2", 0.02), ("2", 0.03)]
