"""The check that a GPU machine runs in one command: here its dry run on the CPU."""

import json
import math
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import benchmarks.gpu_check
from avalanche_dlcpa import cuda_graph
from benchmarks import origin
from benchmarks.cells import Cell, read_result
from benchmarks.gpu_check import (
    WithoutCapture,
    check_row,
    compare,
    compare_all,
    is_wrong,
    known_iteration_ms,
    row,
)

ROOT = Path(__file__).parents[1]
PARTS = (
    *("pytest", "benchmarks.throughput"),
    *("benchmarks.gpu_check graph", "benchmarks.gpu_check row"),
)
SMALL = {"iterations": 6, "width": 4, "device": "cpu", "dataset_root": None}


def gpu_check(*words, **environment):
    """Without a GPU, also where there is one."""
    hidden = {
        "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable, "GPU_CHECK_SECONDS": "3600",
        **environment,
    }  # fmt: skip
    return subprocess.run(
        ["bash", str(ROOT / "benchmarks" / "gpu_check.sh"), *words],
        env=os.environ | hidden,
        capture_output=True,
        text=True,
        timeout=1800,
    )


def test_the_dry_run_writes_every_file(tmp_path):
    done = gpu_check("", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "tests ended with 0, throughput with 0, graph with 0, row with 0" in done.stdout
    graph = json.loads((tmp_path / "graph.json").read_text())
    assert [(c["head"], c["precision"]) for c in graph["comparisons"]] == [
        ("mocov2", "float32"),
        ("mocov2", "bf16"),
    ]
    for comparison in graph["comparisons"]:
        # the same steps on the same CPU
        assert comparison["difference"] == comparison["eager_difference"] == 0
        assert comparison["step_difference"] == comparison["step_noise"] == 0
        assert (comparison["iterations"], comparison["replayed"]) == (10, 7)  # 3 warm up
        assert comparison["compared"] == 6
    throughput = json.loads((tmp_path / "throughput.json").read_text())
    assert [r["head"] for r in throughput["configurations"]] == ["mocov2"]
    [path] = tmp_path.glob("digits_*.json")
    result = read_result(path)
    assert result["num_experiences"] == 5
    assert f"5 tasks, {result['training_seconds']:.0f} s of training" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "usage: bash benchmarks/gpu_check.sh DATA OUT"),
        (("",), "usage: bash benchmarks/gpu_check.sh DATA OUT"),
        (("{tmp}", "{tmp}/out"), "Expected DATA to hold cifar-100-python/"),
        (("", "{tmp}/out", "all"), 'Expected "row" as the third word, or none, got all'),
    ],
)
def test_bad_words_are_told_before_any_work(tmp_path, words, message):
    done = gpu_check(*(word.format(tmp=tmp_path) for word in words))
    assert done.returncode != 0
    assert message in done.stderr
    assert not done.stdout


def test_a_gpu_that_torch_does_not_see_is_told_before_any_work(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    python = tmp_path / "python"  # whose torch is one for CPUs, also where there is a GPU
    python.write_text(
        f"""#!/usr/bin/env bash
case "$*" in
    *is_available*) PYTHONPATH={tmp_path} exec {sys.executable} "$@" ;;
esac
exec {sys.executable} "$@"
"""
    )
    python.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    options = {"CUDA_VISIBLE_DEVICES": "0", "PATH": path, "PYTHON": str(python)}
    done = gpu_check("", str(tmp_path / "out"), **options)
    assert done.returncode == 2
    assert "Expected torch to see the GPU of nvidia-smi" in done.stderr
    assert not done.stdout


def test_what_cannot_be_imported_is_told_before_any_work(tmp_path):
    (tmp_path / "hypothesis.py").write_text("raise ImportError('no libfoo.so')\n")
    done = gpu_check("", str(tmp_path / "out"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "Expected all of `make install` to be imported, got: no libfoo.so" in done.stderr
    assert not done.stdout


def test_the_row_alone(tmp_path):
    done = gpu_check("", str(tmp_path), "row")
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("*.json")
    assert read_result(path)["num_experiences"] == 5


def test_of_mosaics_cifar_100_alone_is_unpacked(tmp_path):
    (tmp_path / "cifar100" / "train").mkdir(parents=True)
    (tmp_path / "unpack.py").write_text(
        "def unpack_cifar100(dest):\n    raise SystemExit(f'to a folder: {dest.is_dir()}')\n"
    )
    done = gpu_check(str(tmp_path / "cifar100"), str(tmp_path / "out"))
    assert done.returncode != 0
    assert "to a folder: True" in done.stderr


def test_where_the_package_is_not_installed_it_is_told(monkeypatch):
    monkeypatch.setattr(origin, "PACKAGES", ("torch", "no-such-package"))
    versions = origin.origin_of(["python"], "cpu")["versions"]
    assert versions == {"torch": version("torch"), "no-such-package": "not installed"}


def test_a_first_task_that_will_not_fit_is_not_begun():
    cell = Cell("dlcpa-a", "digits", 0)
    with pytest.raises(TimeoutError, match=r"first task to fit in 5 s, got \d\d+ s at 1000.0 ms"):
        next(row(cell, device="cpu", dataset_root=None, seconds=5.0, iteration_ms=1000.0))


@pytest.mark.parametrize(
    ("difference", "noise", "wrong"),
    [
        (5e-3, 0.0, False),
        (2e-2, 0.0, True),
        (2e-2, 1e-2, False),
        (0.2, 0.2, True),  # tells nothing
        (float("nan"), 0.0, True),
        (0.0, float("nan"), True),
    ],
)
def test_the_bound_is_what_eager_runs_differ_by(difference, noise, wrong):
    found = {"compared": 5, "step_difference": difference, "step_noise": noise}
    assert is_wrong(found) == wrong
    assert is_wrong(found | {"compared": 0})


def test_the_run_stops_where_the_next_task_would_not_fit():
    cell = Cell("dlcpa-a", "digits", 0)
    [only] = row(cell, device="cpu", dataset_root=None, seconds=0.0)
    assert only["num_experiences"] == 1
    assert len(only["task_il"]["accuracy_matrix"]) == 1


def test_a_graph_that_learns_something_else_is_noticed(monkeypatch):
    class Wrong(WithoutCapture):
        def capture(self, run):
            return lambda: (run(), run())[1]  # every step twice

    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", Wrong)
    wrong = compare("simclr", "float32", **SMALL)
    assert min(wrong["difference"], wrong["step_difference"]) > 0.1
    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", WithoutCapture)
    right = compare("simclr", "float32", **SMALL)
    assert right["difference"] == right["step_difference"] == 0


def test_a_comparison_that_breaks_off_stops_no_other(monkeypatch, capsys):
    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", WithoutCapture)
    pairs = [("no-such-head", "float32"), ("simclr", "float32")]
    broken, sound = compare_all(pairs, until=float("inf"), **SMALL)
    assert "no-such-head" in broken["error"]
    assert [is_wrong(broken), is_wrong(sound)] == [True, False]
    assert "no-such-head float32: broke off: " in capsys.readouterr().out
    assert list(compare_all(pairs, until=0.0, **SMALL)) == []
    assert "no time for simclr float32" in capsys.readouterr().out


def test_a_wrong_graph_ends_with_an_error(monkeypatch, tmp_path):
    class Wrong(WithoutCapture):
        def capture(self, run):
            return lambda: (run(), run())[1]  # every step twice

    monkeypatch.setattr(benchmarks.gpu_check, "WithoutCapture", Wrong)
    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", Wrong)  # taken out again at the end
    words = ["--device", "cpu", "--seconds", "3600", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gpu_check", "graph", *words])
    with pytest.raises(SystemExit, match="Expected replayed iterations to give the weights"):
        benchmarks.gpu_check.main()
    assert len(json.loads((tmp_path / "graph.json").read_text())["comparisons"]) == 2


def test_what_an_iteration_takes_is_known_from_the_comparisons(tmp_path):
    path = tmp_path / "graph.json"
    assert known_iteration_ms(path) == 0.0
    others = [
        {"head": "byol", "precision": "bf16", "graph_ms": 9.0},
        {"head": "mocov2", "precision": "float32", "graph_ms": 5.0},
    ]
    broken = {"head": "mocov2", "precision": "bf16", "error": "out of memory"}
    path.write_text(json.dumps({"comparisons": [*others, broken]}))
    assert known_iteration_ms(path) == 0.0
    sound = {"head": "mocov2", "precision": "bf16", "graph_ms": 2.5}
    path.write_text(json.dumps({"comparisons": [*others, sound]}))
    assert known_iteration_ms(path) == 2.5


def test_a_row_that_is_not_begun_is_an_error(monkeypatch, tmp_path):
    def begin_not(cell, **options):
        yield from row(cell, **{**options, "iteration_ms": 1e6})

    monkeypatch.setattr(benchmarks.gpu_check, "row", begin_not)
    with pytest.raises(SystemExit, match="Expected the first task to fit in 5 s, got"):
        check_row(device="cpu", dataset_root=None, seconds=5.0, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_break_a_comparison_off(monkeypatch):
    monkeypatch.setattr(
        benchmarks.gpu_check, "_all_weights", lambda strategy: torch.tensor([1.0, math.nan])
    )
    with pytest.raises(FloatingPointError, match="weights after training with cuda_graph=False"):
        compare("simclr", "float32", **SMALL)


@pytest.mark.parametrize("fails", PARTS)
def test_what_fails_is_told_at_the_end_and_stops_no_other(tmp_path, fails):
    python = tmp_path / "python"
    python.write_text(
        f"""#!/usr/bin/env bash
case "$*" in
    "-m {fails} "*) exit 7 ;;
    -m*) exit 0 ;;
esac
exec {sys.executable} "$@"
"""
    )
    python.chmod(0o755)
    done = gpu_check("", str(tmp_path / "out"), PYTHON=str(python))
    codes = [7 * (part == fails) for part in PARTS]
    words = "tests ended with {}, throughput with {}, graph with {}, row with {}".format(*codes)
    assert words in done.stdout
    assert done.returncode == 1


def test_seconds_count_from_when_they_were_given(monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr(benchmarks.gpu_check, "check_row", given.update)
    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", WithoutCapture)  # taken out again at the end
    words = ["--device", "cpu", "--seconds", "100", "--since", str(time.time() - 40)]
    monkeypatch.setattr(sys, "argv", ["gpu_check", "row", *words, "--out", str(tmp_path)])
    benchmarks.gpu_check.main()
    assert 50 < given["seconds"] <= 60
