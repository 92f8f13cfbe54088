"""The built wheel outside the checkout, and the examples as a user runs them."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(*words, cwd, **environment):
    keep = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**keep, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,  # a machine may be busy with other tests
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = run(
        "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet",
        "-w", str(folder), str(ROOT), cwd=folder,
    )  # fmt: skip
    assert build.returncode == 0, build.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "avalanche_dlcpa").rglob("*.py")}
    packed = {n for n in names if ".dist-info/" not in n}
    assert packed == modules | {"avalanche_dlcpa/py.typed"}


def test_the_wheel_trains_outside_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    script = f"""
import sys
sys.path.insert(0, {str(site)!r})
import avalanche_dlcpa
assert avalanche_dlcpa.__file__.startswith({str(site)!r}), avalanche_dlcpa.__file__
from torch.optim import SGD
from avalanche_dlcpa import DLCPAStrategy
from avalanche_dlcpa.backbones import resnet18
from avalanche_dlcpa.streams import split_digits
model = resnet18(10, in_channels=1, width=4)
strategy = DLCPAStrategy(model=model, optimizer=SGD(model.parameters(), lr=0.01),
                         train_mb_size=64, evaluator=None)
strategy.train(split_digits(5).train_stream[0])
print("trained", int(strategy.model.num_averaged))
"""
    result = run("-c", script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("trained 1")


def test_without_solo_learn_the_constructor_names_the_command(tmp_path):
    script = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "solo" else find(name, *more)
from torch.optim import SGD
from avalanche_dlcpa import DLCPAStrategy
from avalanche_dlcpa.backbones import resnet18
model = resnet18(10, width=4)
DLCPAStrategy(model=model, optimizer=SGD(model.parameters(), lr=0.01), ssl=None, train_mb_size=2)
model = resnet18(10, width=4)
DLCPAStrategy(model=model, optimizer=SGD(model.parameters(), lr=0.01), train_mb_size=2)
"""
    result = run("-c", script, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert result.returncode == 1
    assert "ImportError" in result.stderr.splitlines()[-1]
    assert "pip install --no-deps solo-learn==1.0.2" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example, tmp_path):
    result = run("-W", "ignore", str(example), cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert result.returncode == 0, result.stderr[-2000:]
    results = ("after learning task i", "Top1_Acc_Stream", "Class-IL: digit ")
    assert any(words in result.stdout for words in results)
    assert "Class-IL: digit" not in result.stdout or result.stdout.count("digit 0") == 3
    for scenario, numbers in printed_matrices(result.stdout):
        assert scenario != "Task-IL" or min(numbers) > 0.85, result.stdout
    if example.stem == "drop_in_for_ewc":
        ewc, dlcpa = [
            row[-5:] for name, row in printed_matrices(result.stdout) if name == "Class-IL"
        ]
        assert sum(ewc) / 5 < 0.3
        assert sum(dlcpa) / 5 > 0.5


def printed_matrices(text):
    """Of each accuracy matrix that an example prints, its scenario and its numbers, row by row."""
    parts = re.findall(r"(Class-IL|Task-IL)[^:\n]*:\n(\[\[.*?\]\])", text, re.DOTALL)
    return [(name, [float(x) for x in re.findall(r"\d+\.\d*", part)]) for name, part in parts]


def test_the_code_of_the_readme_runs(tmp_path):
    """On digits, with a small network and one epoch."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    code = "\n".join(blocks)
    for shown, small in {
        "split_cifar100(10, augment=False)": "split_digits(5)",
        "import split_cifar100": "import split_digits",
        'device="cuda"': 'device="cpu"',
        "train_epochs=100": "train_epochs=1",
        "[99]": "[1]",
    }.items():
        assert code.count(shown) == 1, shown
        code = code.replace(shown, small)
    small = "resnet18(num_classes=10, in_channels=1, width=4)"
    code = code.replace("resnet18(num_classes=100)", small)
    result = run("-W", "ignore", "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    first, *_ = re.findall(r"^(\S+) (\S+)$", result.stdout, re.MULTILINE)  # ACC and BWT
    assert 0 <= float(first[0]) <= 1
    assert first[1] == "nan"  # of one task
    assert result.stdout.rstrip().endswith("]]")


def test_the_map_of_the_benchmarks_names_each_of_their_files():
    _, _, places = (ROOT / "benchmarks" / "README.md").read_text().partition("## Where things are")
    files = {path.name for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"\[(\w+\.py)\]\(\1\)", places)) == files


PAGES = [
    *sorted(page.relative_to(ROOT) for page in ROOT.glob("*.md")),
    Path("benchmarks/README.md"),
    Path("tests/fixtures/README.md"),
]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        path = (ROOT / page.parent / name) if name else ROOT / page
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
            assert anchor in anchors, target
