"""Results that were altered, copied or cut, and numbers on the command line that mean nothing."""

import json
import os
import subprocess
import sys

import pytest
from synthetic_results import make_result

from benchmarks import building, compare, demo, gaussian_report, pool, report, run, trials
from benchmarks.cells import Cell, check_same
from benchmarks.hyperparameters import HyperparameterError
from benchmarks.loading import load_results
from benchmarks.names import whole_number
from benchmarks.origin import ROOT
from benchmarks.whole_files import save_json, whole_file

TWIN = "digits-cifar100-5"
CELL = Cell("naive", "digits")


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
    "no scenario": (altered("class_il", value=None), "Expected class_il to be a dict, got None"),
    "no confusion": (
        altered("class_il", "confusion_matrix", value=KeyError),
        r"Expected a confusion_matrix of all labels up to 9, got \(\)",
    ),
    "small confusion": (
        altered("class_il", "confusion_matrix", value=[[1]]),
        r"Expected a confusion_matrix of all labels up to 9, got \(1, 1\)",
    ),
    "flat classes": (altered("classes", value=[1, 2, 3, 4, 5]), "with other contents .TypeError"),
    "confusion of another kind": (
        altered("class_il", "confusion_matrix", value={"a": 1}),
        "with other contents .TypeError",
    ),
    "no Task-IL": (altered("task_il", value=KeyError), "with other contents .KeyError: 'task_il'"),
    "no Class-IL": (altered("class_il", value=KeyError), "with other contents .KeyError"),
    "origin lost": (altered("provenance", value=KeyError), "with other contents .KeyError"),
    "no origin": (altered("provenance", value={}), "Expected a provenance with command, versions"),
    "no matrix": (
        altered("task_il", "accuracy_matrix", value="lost"),
        "Expected an accuracy_matrix in task_il, got none",
    ),
    "matrix of others": (
        altered("task_il", "accuracy_matrix", value=[[0.5]]),
        "Expected an accuracy_matrix of 5 tasks in task_il",
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
    "classes": (altered("classes", 4, value=[99, 98]), "of all labels up to 99"),
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


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 3), ("method", "ewc"), ("setting", TWIN), ("changes", {"lr": 1.0})],
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
        (["--set=lr=abc"], "HyperparameterError: Expected hyperparameters that suit naive"),
        (["--set=lr=-1"], "HyperparameterError: Expected hyperparameters that suit naive"),
        (["--set=train_epochs=1"], "Expected hyperparameters that naive has, got train_epochs"),
        (["--set=last_epochs=-5"], "from 0 to 1, got -5"),
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
    naive = ["--methods", "naive", "--settings", TWIN]
    for main, words, message in (
        (compare.main, [*naive, "--seeds", "-1"], "--seeds: Expected a whole number"),
        (compare.main, [*naive, "--out", str(file)], "File exists"),
        (demo.main, ["--setting", "cifar100-10"], "Expected hyperparameters of naive"),
        (gaussian_report.main, [str(tmp_path)], "Expected JSONs of benchmarks.gaussian"),
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


def test_the_report_of_this_folder_has_its_name(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "of_all"
    save_json(make_result(), folder / "digits_naive_seed0.json")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["report", "."])
    report.main()
    assert "<title>Results in of_all</title>" in (folder / "report.html").read_text()
    assert "# Results in of\\_all\n" in (folder / "report.md").read_text()


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
