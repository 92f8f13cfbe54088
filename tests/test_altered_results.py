"""Results that were altered, copied or cut, and numbers on the command line that mean nothing."""

import csv
import json
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from synthetic_results import lower_triangle, make_result

from avalanche_dlcpa.folder_lock import lock_folder
from benchmarks import (
    building,
    compare,
    data_statistics,
    demo,
    gaussian,
    gaussian_report,
    hyperparameter_table,
    hyperparameters,
    pool,
    report,
    run,
    throughput_report,
    trials,
    tune,
)
from benchmarks.cells import Cell, check_same, checkpoints_path, result_path
from benchmarks.hyperparameters import HyperparameterError
from benchmarks.loading import load_results
from benchmarks.names import whole_number
from benchmarks.origin import ROOT
from benchmarks.settings import SETTINGS
from benchmarks.whole_files import expect_writable, save_json, whole_file
from benchmarks.without_runs import skipped_data

TWIN = "digits-cifar100-5"
CELL = Cell("naive", "digits")


UNDEFINED = np.full((5, 5), math.nan)
LAST_HALF = lower_triangle("digits", 0.5, [0.5, 0.5, 0.5, math.nan, 0.5])


def sound(**other):
    own = {"hyperparameters": CELL.hyperparameters, "batch_size": CELL.batch_size}
    return make_result(**own, **other)


def altered(*path, value):
    """A sound result with one part replaced, or taken out where the value is `KeyError`."""
    result = json.loads(json.dumps(sound()))
    *parents, last = path
    part = result
    for name in parents:
        part = part[name]
    if value is KeyError:
        del part[last]
    else:
        part[last] = value
    return result


ALTERED = {
    "classes of numbers with a point": (
        altered("classes", value=[[float(2 * n), 2 * n + 1.0] for n in range(5)]),
        "with other contents .IndexError",
    ),
    "no scenario": (altered("class_il", value=None), "Expected class_il to be a dict, got None"),
    "no confusion": (
        altered("class_il", "confusion_matrix", value=KeyError),
        "with other contents .KeyError: 'confusion_matrix'",
    ),
    "small confusion": (
        altered("class_il", "confusion_matrix", value=[[1]]),
        r"Expected confusion_matrix to be numbers of shape \(10, 10\), got \(1, 1\)",
    ),
    "flat classes": (altered("classes", value=[1, 2, 3, 4, 5]), "with other contents .TypeError"),
    "confusion of another kind": (
        altered("class_il", "confusion_matrix", value={"a": 1}),
        r"Expected confusion_matrix to be numbers of shape \(10, 10\), got \(\)",
    ),
    "confusion of other answers": (
        altered("class_il", "confusion_matrix", value=np.eye(10).tolist()),
        "Expected a confusion_matrix with the accuracies .0.5, 0.5",
    ),
    "negative counts": (
        altered("class_il", "confusion_matrix", value=(-np.eye(10)).tolist()),
        "Expected confusion_matrix to be from 0 to inf, got others",
    ),
    "seconds in words": (
        altered("training_seconds", value="12"),
        r"Expected training_seconds to be numbers of shape \(\)",
    ),
    "no memory": (altered("memory", "kept_bytes", value=None), "Expected kept_bytes to be numbers"),
    "memory in words": (altered("memory", value="much"), "with other contents .TypeError"),
    "no versions": (
        altered("provenance", "versions", value=None),
        "Expected versions to be a dict, got None",
    ),
    "no Task-IL": (altered("task_il", value=KeyError), "with other contents .KeyError: 'task_il'"),
    "no Class-IL": (altered("class_il", value=KeyError), "with other contents .KeyError"),
    "origin lost": (altered("provenance", value=KeyError), "with other contents .KeyError"),
    "no origin": (altered("provenance", value={}), "with other contents .KeyError"),
    "no matrix": (
        altered("task_il", "accuracy_matrix", value="lost"),
        "Expected an accuracy_matrix in task_il, got none",
    ),
    "matrix of others": (
        altered("task_il", "accuracy_matrix", value=[[0.5]]),
        "Expected an accuracy_matrix of 5 tasks in task_il",
    ),
    "nothing in the end": (
        sound(class_il=UNDEFINED, task_il=UNDEFINED),
        "Expected the last row of the accuracy_matrix in task_il to be numbers, got .None",
    ),
    "half of Class-IL in the end": (
        sound(class_il=LAST_HALF),
        "Expected the last row of the accuracy_matrix in class_il to be numbers, got .0.5",
    ),
    "ACC": (
        altered("class_il", "ACC", value=0.9),
        "Expected ACC in class_il to be 0.5, which follows from the accuracy_matrix, got 0.9",
    ),
    "BWT": (altered("task_il", "BWT", value=None), "Expected BWT in task_il to be 0.0, which"),
    "curve": (
        altered("task_il", "accuracy_over_experiences", value=[0.5]),
        "Expected accuracy_over_experiences in task_il to be",
    ),
    "classes": (altered("classes", 4, value=[99, 98]), r"of shape \(100, 100\), got \(10, 10\)"),
    "classes again": (
        altered("classes", 4, value=[9, 8]),
        "Expected classes of 5 tasks, each once",
    ),
}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_result_is_left_out_and_stops_nothing(name, tmp_path):
    result, reason = ALTERED[name]
    check_same(sound(), CELL)
    with pytest.raises(ValueError, match=reason):
        check_same(result, CELL)
    save_json(result, tmp_path / "digits_naive_seed0.json")
    save_json(make_result(seed=1), tmp_path / "digits_naive_seed1.json")
    found, skipped = load_results(tmp_path)
    assert [one["seed"] for one in found] == [1]
    assert list(skipped) == ["digits_naive_seed0.json"]


def test_a_number_that_json_does_not_have_is_no_result(tmp_path):
    path = tmp_path / "digits_naive_seed0.json"
    path.write_text(json.dumps(altered("training_seconds", value=math.nan)))
    assert "NaN is no number of JSON" in load_results(tmp_path)[1][path.name]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("method", ["ewc"], "Expected method to be a str, got ['ewc']"),
        ("seed", True, "Expected seed to be a int, got True"),
        ("seed", -3, "Expected a seed from 0 on, got -3"),
        ("changes", {"lr": [1]}, "Expected changes to words or numbers"),
    ],
)
def test_what_no_cell_is_named_with_is_left_out(name, value, reason, tmp_path):
    path = tmp_path / "digits_naive_seed0.json"
    save_json({**sound(), name: value}, path)
    assert reason in load_results(tmp_path)[1][path.name]


def analysis(method, **found):
    """A result of an analysis, as `run` writes it."""
    kept = {k: v for k, v in make_result(method, TWIN).items() if k not in ("class_il", "task_il")}
    return {**kept, **found}


NUM_TASKS = SETTINGS[TWIN].num_experiences
PROBE = {
    "matrix": np.full((NUM_TASKS + 2, NUM_TASKS), 0.5).tolist(),
    "row_labels": (NUM_TASKS + 2) * ["x"],
}
SURFACE = {
    "losses": {"task 1": [[1.0, 2.0]], "task 2": [[1.0, 3.0]]},
    "x": [0.0, 1.0],
    "y": [0.0],
    "points": {"start": [0.0, 0.0]},
    "losses_at_points": {"task 1": {"start": 1.0}, "task 2": {"start": 1.0}},
}


@pytest.mark.parametrize(
    ("method", "found", "change", "reason"),
    [
        ("linear-probe", PROBE, {"matrix": None}, "Expected matrix to be numbers of shape"),
        ("linear-probe", PROBE, {"matrix": [[0.5]]}, "Expected matrix to be numbers of shape"),
        ("linear-probe", PROBE, {"row_labels": []}, f"Expected {NUM_TASKS + 2} row_labels, got 0"),
        ("loss-surface", SURFACE, {"losses": None}, "with other contents (AttributeError"),
        ("loss-surface", SURFACE, {"x": [0.0]}, "Expected losses of task 1 to be numbers of shape"),
        (
            "loss-surface",
            SURFACE,
            {"losses": {"task 1": [[1.0, -2.0]]}},
            "Expected losses of task 1 to be from 0 to inf",
        ),
        ("loss-surface", SURFACE, {"points": {}}, "Expected losses at points of task 1"),
    ],
)
def test_an_altered_analysis_is_left_out(method, found, change, reason, tmp_path):
    for seed, more in ((0, {}), (1, change)):
        path = tmp_path / f"{TWIN}_{method}_seed{seed}.json"
        save_json({**analysis(method, **found), **more, "seed": seed}, path)
    kept, skipped = load_results(tmp_path)
    assert [result["seed"] for result in kept] == [0]
    assert reason in skipped[f"{TWIN}_{method}_seed1.json"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 3),
        ("method", "ewc"),
        ("setting", TWIN),
        ("changes", {"lr": 1.0}),
        ("judged_on", "valid_stream"),
    ],
)
def test_a_file_of_another_cell_is_not_taken_for_that_of_a_cell(name, value):
    with pytest.raises(ValueError, match=r"was copied or renamed|the settings have changed"):
        check_same({**sound(), name: value}, CELL)


def test_changes_that_are_no_changes_are_left_out(tmp_path):
    save_json({**sound(), "changes": None}, tmp_path / "digits_naive_seed0.json")
    assert "to be a dict, got None" in load_results(tmp_path)[1]["digits_naive_seed0.json"]


# Cells and hyperparameters that cannot be -------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((("lr", "a/b"),), "of letters, digits, dots, plus and minus, got lr=a/b"),
        ((("note", "x" * 260),), "for which a file can be named, got 2.. letters"),
        ((("ssl", 3),), "Expected a self-supervised loss by name, got '3'"),
    ],
)
def test_changes_after_which_no_file_could_be_named_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Cell("naive", "digits", 0, changes)


def test_an_analysis_is_no_trial():
    with pytest.raises(ValueError, match="Expected a trial of a method, got one of linear-probe"):
        Cell("linear-probe", TWIN, validation=True)


@pytest.mark.parametrize("last_epochs", [-5, 2.5, 10, "1"])
def test_a_schedule_that_would_be_none_or_another_is_refused(last_epochs):
    with pytest.raises(HyperparameterError, match=f"from 0 to 9, got {last_epochs!r}"):
        building._lowered(None, 10, last_epochs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set=foo"], "Expected changes such as supervised_weight=0.1, got 'foo'"),
        (["--threads", "0"], "--threads: Expected a whole number of at least 1, got 0"),
        (["--seed", "-1"], "--seed: Expected a whole number of at least 0 and at most 4294967295"),
        (["--set=lr=abc"], "Expected lr to be a number above 0, got 'abc'"),
        (["--set=lr=-1"], "Expected lr to be a number above 0, got -1"),
        (["--set=lr=0"], "Expected lr to be a number above 0, got 0"),
        (["--set=lr=true"], "Expected lr to be a number above 0, got True"),
        (["--set=lr=0.1", "--set=lr=0.2"], "Expected one value for lr, got '0.2' as well"),
        (["--set=ssl=mocov2", "--ssl=byol"], "Expected one value for ssl, got 'byol' as well"),
        (["--set=momentum=2"], "Expected momentum to be a number from 0 to 1, got 2"),
        (["--method=ewc", "--set=strength=-1"], "Expected strength to be a number from 0 on"),
        (["--method=ewc", "--set=strength=x"], "Expected strength to be a number from 0 on"),
        (["--ssl=mocov2", "--set=temperature=0"], "options that suit the self-supervised loss"),
        (["--device=cpuu"], "Expected a device as torch names it, such as cpu or cuda:0, got cpuu"),
        (["--device=meta:0", "--setting=digit"], "Did you mean 'digits'?"),
        (["--device=xpu:7"], "Expected a device of this machine, got xpu:7"),
        (["--method=EWK"], "Did you mean 'ewc'?"),
        (["--method=DLCPA"], "There are dlcpa-a, dlcpa-b"),
        (["--method=linear-probe", "--set=lrr=9"], "that linear-probe or STL has, got lrr."),
        (["--method=linear-probe", "--set=seed=3"], "that linear-probe or STL has, got seed."),
        (["--method=linear-probe", "--set=setting=3"], "linear-probe or STL has, got setting."),
        (
            ["--method=linear-probe", "--set=train_epochs=3"],
            "that linear-probe or STL has, got train_epochs.",
        ),
        (
            ["--method=packnet", "--set=post_prune_share=1"],
            "Expected `post_prune_share` to leave an epoch before the pruning, got 1, which is 2 "
            "of 2 epochs",
        ),
        (
            ["--method=agem", "--set=sample_size=0"],
            "Expected `sample_size` to be a whole number from 2 on, a sample a task, got 0",
        ),
        (["--method=gem", "--set=sample_size=0"], "hyperparameters that gem has, got sample_size"),
        (
            ["--method=loss-surface", "--set=resolution=1"],
            "Expected `resolution` to be a whole number from 2 on, got 1",
        ),
        (["--set=train_epochs=1"], "Expected hyperparameters that naive has, got train_epochs"),
        (["--validation"], "Expected naive to be given lr, got {}: name what it lacks with --set"),
        (
            ["--method=ewc", "--validation", "--set=lr=0.1"],
            "Expected a `strength` for EWC, got none",
        ),
        (
            ["--method=ewc", "--set=ewc_lambda=5"],
            "Expected `strength`, which EWC calls ewc_lambda, got ewc_lambda: name `strength`",
        ),
        (["--set=lr=Infinity"], "Expected a finite number for lr, which files hold, got Infinity"),
        (["--set=last_epochs=-5"], "Expected last_epochs to be a number from 0 on, got -5"),
    ],
)
def test_bad_words_of_a_run_are_answered_in_a_line(words, message, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    own = ["run", "--method", "naive", "--setting", TWIN, "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*own, *words])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert message in f"{ended.value} {capsys.readouterr().err}"
    assert not out.exists() or not list(out.iterdir())


def test_bad_words_of_a_grid_of_the_demo_and_of_the_gaussian_report(tmp_path, monkeypatch, capsys):
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "mine_seed3.json").write_text("{}")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "digits_naive_seed0_variants.json").write_text('{"variants": ')
    naive = ["--methods", "naive", "--settings", TWIN]
    study = ["--method", "naive", "--setting", TWIN]
    for main, words, message in (
        (compare.main, [*naive, "--seeds", "-1"], "--seeds: Expected a whole number"),
        (compare.main, [*naive, "--out", str(file)], "File exists"),
        (demo.main, ["--setting", "cifar100-10"], "Expected hyperparameters of naive"),
        (gaussian_report.main, [str(tmp_path)], "Expected JSONs of benchmarks.gaussian"),
        (gaussian_report.main, [str(tmp_path / "foreign")], "mine_seed3.json to be a result of"),
        (gaussian_report.main, [str(tmp_path / "cut")], "variants.json to hold a whole result"),
        (gaussian.main, [*study, "--out", str(file)], "File exists"),
        (throughput_report.main, [str(file)], "to be a result of benchmarks.throughput"),
        (throughput_report.main, [str(tmp_path / "no.json")], "No such file or directory"),
    ):
        monkeypatch.setattr(sys, "argv", ["words", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def test_a_folder_in_the_place_of_a_result_is_skipped(tmp_path):
    (tmp_path / f"{CELL.name}.json").mkdir()
    missing, done, refused = compare.sort_out([CELL], tmp_path)
    assert (missing, done) == ([], [])
    assert "Is a directory" in refused[CELL]


@pytest.mark.parametrize("word", ["0", "-1", "1.5", "one", ""])
def test_a_word_that_is_no_count_is_refused(word):
    with pytest.raises(Exception, match=f"Expected a whole number of at least 1, got {word}"):
        whole_number(least=1)(word)


# Several grids on one folder --------------------------------------------------------------------


@pytest.mark.parametrize("method", ["naive", "dlcpa-mocov2"])
def test_two_processes_do_not_run_one_cell(method, tmp_path):
    command = [
        sys.executable, "-m", "benchmarks.run", "--method", method, "--setting", TWIN,
        "--out", str(tmp_path),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]  # fmt: skip
    printed = [process.communicate(timeout=300)[0] for process in both]
    wrote = [f"wrote {tmp_path}" in text for text in printed]
    assert sum(wrote) == 1, printed
    other = printed[wrote.index(False)]
    assert "that no other process uses" in other or "is there already" in other
    assert [path.name for path in tmp_path.iterdir()] == [f"{TWIN}_{method}_seed0.json"]


def test_logs_of_killed_grids_and_of_earlier_tries_go(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    cell = Cell("naive", TWIN)
    left = logs / f".{cell.name}.{pool._process_name(ended.pid)}.log"
    own = logs / f".other.{pool._process_name(os.getpid())}.log"
    elsewhere = logs / f".other.of-a.machine-{ended.pid}.log"
    for log in (left, own, elsewhere, logs / f"{cell.name}.log"):
        log.write_text("failed")
    *_, [last] = pool.run_in_processes([cell], tmp_path, jobs=1, options=[])
    assert last.failure is None
    assert set(logs.iterdir()) == {own, elsewhere}


def test_a_log_that_somebody_took_away_stops_no_grid(tmp_path):
    cell = Cell("naive", TWIN)
    reports = pool.run_in_processes([cell], tmp_path, jobs=1, options=[])
    next(reports)
    for log in (tmp_path / "logs").iterdir():
        log.unlink()
    *_, [last] = reports
    assert last.failure is None


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 4096})
    monkeypatch.setattr(pool.shutil, "disk_usage", lambda folder: usage)
    words = pool._without_output(tmp_path / "logs" / "a.log")
    assert words == f"no output, as the disk of {tmp_path} is full (4096 bytes are left)"


def test_a_figure_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.png"
    path.write_text("before")

    def write():
        with whole_file(path) as draft:
            draft.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.png", "before")]


def test_a_draft_that_a_kill_has_left_is_no_result(tmp_path):
    path = save_json(make_result(), tmp_path / "digits_naive_seed0.json")
    with whole_file(path) as draft:
        draft.write_text(path.read_text())
        found, skipped = load_results(tmp_path)
    assert ([one["seed"] for one in found], skipped) == ([0], {})


@pytest.mark.parametrize("kind", ["folder", "dangling link"])
def test_what_cannot_be_read_is_left_out_and_stops_nothing(kind, tmp_path):
    save_json(sound(), tmp_path / "digits_naive_seed0.json")
    other = tmp_path / "digits_si_seed0.json"
    if kind == "folder":
        other.mkdir()
    else:
        other.symlink_to(tmp_path / "nowhere")
    found, skipped = load_results(tmp_path)
    assert [result["seed"] for result in found] == [0]
    assert "Expected a file that can be read, got: " in skipped[other.name]


ALTERED_COUNTS = {
    "cut": '{"counted": {"dig',
    "other contents": '{"other": 1}',
    "no rows": '{"counted": 3}',
    "a number as a row": '{"counted": {"digits": 3}}',
    "a short row": '{"counted": {"digits": ["1"]}}',
    "a word as a row": '{"counted": {"digits": "12345"}}',
    "a list": "[]",
    "no text": "\xff",
}


@pytest.mark.parametrize("name", [*ALTERED_COUNTS, "a folder"])
def test_altered_counts_are_left_out_with_the_reason(name, tmp_path):
    path = tmp_path / "data_statistics.json"
    if name == "a folder":
        path.mkdir()
    else:
        path.write_text(ALTERED_COUNTS[name], encoding="latin-1")
    reason = "Expected data_statistics.json to hold what was counted, got a file cut short or alter"
    assert reason in skipped_data(tmp_path)["data_statistics.json"]
    with pytest.raises(
        ValueError, match=r"got none: run `python -m benchmarks\.data_statistics` first"
    ):
        report.make_sections([], tmp_path, experiment="table6")


def test_altered_counts_stop_no_report(tmp_path, monkeypatch, capsys):
    save_json(sound(), tmp_path / "digits_naive_seed0.json")
    (tmp_path / "data_statistics.json").write_text(ALTERED_COUNTS["cut"])
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path)])
    report.main()
    assert "skipped data_statistics.json: Expected" in capsys.readouterr().out
    assert "- `data_statistics.json`: Expected" in (tmp_path / "report.md").read_text()


def test_the_report_of_this_folder_has_its_name(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "of_all"
    save_json(make_result(), folder / "digits_naive_seed0.json")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["report", "."])
    report.main()
    assert "<title>avalanche-dlcpa: of_all</title>" in (folder / "report.html").read_text()
    assert "# avalanche-dlcpa: of\\_all\n" in (folder / "report.md").read_text()


# Rows of trials ---------------------------------------------------------------------------------


def test_a_row_that_was_cut_short_costs_no_other(tmp_path):
    path = tmp_path / "tuning.csv"
    rows = [
        ("digits", "ewc", 5, seed, json.dumps({"lr": 0.1, "strength": 1}), "0.1", "0.2", "abc")
        for seed in range(3)
    ]
    for row in rows[:2]:
        trials.add_row(path, row)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rfind(b"strength")])  # within quotes
    assert [row["seed"] for row in trials.read_rows(path)] == ["0"]
    trials.add_row(path, rows[2])
    assert [row["seed"] for row in trials.read_rows(path)] == ["0", "2"]


ROW = ["digits", "ewc", "5", "0", '{"lr": 0.1}', "0.1", "0.2", "abc"]


@pytest.mark.parametrize("lines", [[ROW], [trials.FIELDS[:-1], ROW[:-1]], [trials.FIELDS, ROW[:3]]])
def test_trials_without_their_fields_are_told(lines, tmp_path):
    path = tmp_path / "tuning.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    with pytest.raises(ValueError, match=r"Expected tuning.csv to have setting,method,.*, got "):
        trials.read_rows(path)
    with pytest.raises(ValueError, match=r"Expected tuning.csv to have"):
        tune.tune("digits", ["naive"], [0], None, folder=tmp_path, path=path)


@pytest.mark.parametrize("text", ["", "\n", "setting,met"])
def test_a_file_before_its_first_trial_has_none(text, tmp_path):
    path = tmp_path / "tuning.csv"
    path.write_text(text)
    assert trials.read_rows(path) == []


def test_a_seed_that_was_broken_off_does_not_decide():
    rows = [
        dict(
            zip(
                trials.FIELDS,
                ("digits", "ewc", "5", seed, words, class_il, "0.9", "abc"),
                strict=True,
            )
        )
        for seed, words, class_il in (
            ("0", '{"lr": 1}', "0.2"),
            ("0", '{"lr": 2}', "0.5"),
            ("3", '{"lr": 1}', "0.2"),  # then Ctrl-C
        )
    ]
    assert trials.best(rows, "digits", "ewc", [0])["hyperparameters"] == {"lr": 2}


# Folders that take no files ---------------------------------------------------------------------


@pytest.mark.parametrize("place", ["file", "/proc/nowhere"])
def test_a_place_that_takes_no_files_is_refused_before_any_work(
    place, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out" if place == "file" else place
    if place == "file":
        out.write_text("no folder")
    own = ["--settings", TWIN, "--methods", "naive", "--out", str(out)]
    for module, words in (
        (run, ["run", "--method", "naive", "--setting", TWIN, "--out", str(out)]),
        (compare, ["compare", *own]),
    ):
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            module.main()
        assert ended.value.code == 2
        said = capsys.readouterr()
        assert f"{out}" in said.err
        assert "learned" not in said.out


def test_a_folder_may_be_asked_by_many_at_once(tmp_path):
    with ThreadPoolExecutor(8) as pool_of_threads:
        asked = pool_of_threads.map(expect_writable, 200 * [tmp_path / "results"])
    assert set(asked) == {tmp_path / "results"}
    assert list((tmp_path / "results").iterdir()) == []


def test_a_cell_whose_process_cannot_begin_fails_alone(tmp_path):
    (tmp_path / "logs").write_text("no folder")
    cells = [Cell("naive", TWIN, seed) for seed in range(2)]
    reports = list(pool.run_in_processes(cells, tmp_path, jobs=1, options=[]))
    ended = [report for several in reports for report in several]
    assert [report.cell for report in ended] == cells
    assert all("Error: " in report.failure for report in ended)


def test_a_cell_whose_process_cannot_begin_waits_for_others_to_end(tmp_path, monkeypatch):
    begin, at_work = pool._Process, []

    def begin_if_alone(cell, *words):
        if any(process.poll() is None for process in at_work):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        process = begin(cell, *words)
        at_work.append(process._process)
        return process

    monkeypatch.setattr(pool, "_Process", begin_if_alone)
    cells = [Cell("naive", TWIN, seed) for seed in range(3)]
    for reports in pool.run_in_processes(cells, tmp_path, jobs=2, options=[]):
        assert not any(report.failure for report in reports)
    assert all(result_path(cell, tmp_path).exists() for cell in cells)


def test_a_folder_that_has_all_need_take_no_more(tmp_path, monkeypatch, capsys):
    cell = Cell("naive", TWIN)
    save_json(run.run_cell(cell), result_path(cell, tmp_path))

    def read_only(_):
        raise PermissionError(13, "read only")

    monkeypatch.setattr(compare, "expect_writable", read_only)
    words = ["compare", "--methods", "naive", "--settings", TWIN, "--out", str(tmp_path)]
    for seeds, code in ((["0"], 0), (["0", "1"], 2)):
        monkeypatch.setattr(sys, "argv", [*words, "--seeds", *seeds])
        with pytest.raises(SystemExit) as ended:
            compare.main()
        assert ended.value.code == code


def test_a_result_that_the_disk_does_not_take_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "save_json", full)
    words = ["run", "--method", "naive", "--setting", TWIN, "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="No space left on device"):
        run.main()


def test_two_processes_train_a_cell_once(tmp_path, monkeypatch, capsys):
    cell = Cell("naive", TWIN)
    result = run.run_cell(cell)

    def late(folder):
        lock = lock_folder(folder)
        save_json(result, result_path(cell, tmp_path))
        return lock

    monkeypatch.setattr(run, "lock_folder", late)
    monkeypatch.delattr(run, "run_cell")
    words = ["run", "--method", "naive", "--setting", TWIN, "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    run.main()
    assert "is there already" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [f"{cell.name}.json"]


def test_a_cell_is_locked_until_its_result_is_written(tmp_path, monkeypatch):
    cell = Cell("naive", TWIN)

    def save(result, path):
        assert (checkpoints_path(cell, tmp_path) / ".lock").exists()
        return save_json(result, path)

    monkeypatch.setattr(run, "save_json", save)
    words = ["run", "--method", "naive", "--setting", TWIN, "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    run.main()
    assert [path.name for path in tmp_path.iterdir()] == [f"{cell.name}.json"]


def test_two_processes_write_drafts_of_their_own(tmp_path):
    with whole_file(tmp_path / "file") as one, whole_file(tmp_path / "file") as other:
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "file").read_text() == "one"  # which ends last


@pytest.mark.parametrize("place", ["figures", "report.md", "out", "/proc/nowhere"])
def test_a_report_that_cannot_be_written_prints_its_tables(place, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "results"
    save_json(sound(), folder / "digits_naive_seed0.json")
    out = tmp_path / place if place in ("out", "/proc/nowhere") else folder
    if place == "report.md":
        (folder / place).mkdir()
    elif place != "/proc/nowhere":
        (out if place == "out" else folder / place).write_text("no folder")
    monkeypatch.setattr(sys, "argv", ["report", str(folder), "--out", str(out)])
    with pytest.raises(SystemExit, match=r"to take the report, got .*another folder with --out"):
        report.main()
    assert re.search(r"^Naive +50\.00 +75\.00", capsys.readouterr().out, re.MULTILINE)


def test_a_report_may_go_elsewhere(tmp_path, monkeypatch):
    folder, out = tmp_path / "results", tmp_path / "out"
    path = save_json(sound(), folder / "digits_naive_seed0.json")
    monkeypatch.setattr(sys, "argv", ["report", str(folder), "--out", str(out)])
    report.main()
    assert list(folder.iterdir()) == [path]
    text = (out / "report.md").read_text()
    assert text.startswith("# avalanche-dlcpa: results\n")
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert pictures
    assert all((out / name).is_file() for name in pictures)


def test_an_unknown_data_set_is_answered_with_the_nearest(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["data_statistics", "--data", "digits", "CIFAR100"])
    with pytest.raises(SystemExit):
        data_statistics.main()
    said = "Expected a data set by name, got 'CIFAR100'. Did you mean 'CIFAR-100'?"
    assert said in capsys.readouterr().err


def test_data_are_not_counted_for_a_place_that_takes_no_files(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    out.write_text("no folder")
    monkeypatch.setattr(sys, "argv", ["data_statistics", "--data", "digits", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        data_statistics.main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "name another folder with --out" in said.err
    assert said.out == ""


def test_a_cell_that_another_grid_has_ended_meanwhile_is_no_failure(tmp_path, monkeypatch, capsys):
    cell = Cell("naive", TWIN)

    def elsewhere(cells, *_):
        save_json(run.run_cell(cell), result_path(cell, tmp_path))
        return dict.fromkeys(cells, "at work elsewhere")

    monkeypatch.setattr(compare, "run_grid", elsewhere)
    words = ["compare", "--methods", "naive", "--settings", TWIN, "--seeds", "0"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        compare.main()
    assert ended.value.code == 0
    assert "1 run, 0 failed, 0 skipped" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["[]", '{"digits": {"naive": {}}}', '{"digits": 3}', "{"])
def test_chosen_values_that_were_altered_are_told(content, tmp_path, monkeypatch):
    path = tmp_path / "hyperparameters.json"
    path.write_text(content)
    monkeypatch.setattr(hyperparameters, "CHOSEN", path)
    for ask in (
        lambda: hyperparameters.hyperparameters_of("naive", "digits"),
        lambda: hyperparameters.has_values("naive", "digits"),
        lambda: hyperparameter_table.table("digits"),
    ):
        with pytest.raises(ValueError, match="to hold all values chosen, got a file cut short"):
            ask()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (compare, ["--tune", "--methods", "naive", "--settings", TWIN]),
        (compare, ["--methods", "naive", "--settings", TWIN]),
        (tune, ["--setting", "digits", "--methods", "naive"]),
    ],
)
def test_altered_chosen_values_are_told_before_any_work(
    module, words, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "hyperparameters.json"
    path.write_text("{")
    monkeypatch.setattr(hyperparameters, "CHOSEN", path)
    monkeypatch.setattr(
        tune, "expect_as_many_seeds", partial(trials.expect_as_many_seeds, path=path)
    )
    for work in ("tune", "run_grid"):
        monkeypatch.setattr(module, work, None)
    out = tmp_path / "out"
    outs = ["--out", str(out)] if module is compare else []
    monkeypatch.setattr(sys, "argv", [module.__name__, *words, *outs])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    assert "to hold all values chosen, got a file cut short" in capsys.readouterr().err
    assert not out.exists()
