"""The check that a GPU machine runs in one command: here its dry run on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from avalanche_dlcpa import cuda_graph
from benchmarks.cells import Cell, read_result
from benchmarks.gpu_check import WithoutCapture, compare, row

ROOT = Path(__file__).parents[1]


def gpu_check(*words):
    """Without a GPU, also where there is one."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable, "GPU_CHECK_SECONDS": "300"}
    return subprocess.run(
        ["bash", str(ROOT / "benchmarks" / "gpu_check.sh"), *words],
        env=os.environ | hidden,
        capture_output=True,
        text=True,
    )


def test_the_dry_run_writes_every_file(tmp_path):
    done = gpu_check("", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "tests ended with 0" in done.stdout
    graph = json.loads((tmp_path / "graph.json").read_text())
    assert [(c["head"], c["precision"]) for c in graph["comparisons"]] == [
        ("mocov2", "float32"),
        ("mocov2", "bf16"),
    ]
    for comparison in graph["comparisons"]:
        assert comparison["difference"] == 0  # the same steps on the same CPU
        assert (comparison["iterations"], comparison["replayed"]) == (7, 3)  # 3 warm up, 1 is small
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
    ],
)
def test_bad_words_are_told_before_any_work(tmp_path, words, message):
    done = gpu_check(*(word.format(tmp=tmp_path) for word in words))
    assert done.returncode != 0
    assert message in done.stderr
    assert not done.stdout


def test_the_run_stops_where_the_next_task_would_not_fit():
    cell = Cell("dlcpa-a", "digits", 0)
    [only] = row(cell, device="cpu", dataset_root=None, seconds=0.0)
    assert only["num_experiences"] == 1
    assert len(only["task_il"]["accuracy_matrix"]) == 1


def test_a_graph_that_learns_something_else_is_noticed(monkeypatch):
    class Wrong(WithoutCapture):
        def capture(self, run):
            return lambda: (run(), run())[1]  # every step twice

    options = {"iterations": 6, "width": 4, "device": "cpu", "dataset_root": None}
    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", Wrong)
    assert compare("simclr", "float32", **options)["difference"] > 0.1
    monkeypatch.setitem(cuda_graph.BACKENDS, "cpu", WithoutCapture)
    assert compare("simclr", "float32", **options)["difference"] == 0
