"""The paper's table of hyperparameters, and those of every other method, with their source.

python -m benchmarks.hyperparameter_table --setting cifar100-10
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from benchmarks.experiments import in_words
from benchmarks.hyperparameters import (
    PUBLISHED,
    NoValuesError,
    batch_size_of,
    hyperparameters_of,
)
from benchmarks.markup import NOTHING, Entry, Row, Table, as_text
from benchmarks.methods import METHODS
from benchmarks.names import expect_known
from benchmarks.settings import SETTINGS

PAPER = ("cifar100-10", "tiny-10")
COLUMNS = ("batch size", "hyperparameters", "source", "paper")
PRINTED = Path(__file__).with_name("published_hyperparameters.csv")
NOTE = (
    "Published: in the paper, but classifier_lr and last_epochs in the authors' runs, and "
    "memory_strength in Avalanche."
)
NOTE_ON_SCHEDULE = "Where none are named, DLCPA has last_epochs 1."
NOTE_ON_LAMBDA = (
    "The paper's table calls lambda the weight of the self-supervised loss; here it is "
    "supervised_weight, on the cross-entropy."
)


def table(setting: str) -> Table:
    """What each method runs with in a setting: published, chosen by `benchmarks.tune`, or neither.

    Beside it what the paper's table says of its data set, where it does; below it what that table
    says of others.

    Raises:
        ValueError: An unknown setting, or chosen values in a file cut short or altered.
    """
    plan = SETTINGS[expect_known("setting", setting, SETTINGS)]
    published = PUBLISHED.get(plan.tuned_on or setting, {})
    printed, others = _printed(setting.removeprefix("lab-").removeprefix("digits-"))
    rows, has_default = [], False
    for name, method in METHODS.items():
        if method.trains_as is not None:
            continue
        try:
            values = hyperparameters_of(name, setting)
        except NoValuesError:
            texts, source = NOTHING, "not tuned yet"
        else:
            texts = ", ".join(in_words(*pair) for pair in values.items())
            source = "published" if values == published.get(name) else "benchmarks.tune"
            source += f" for {plan.tuned_on}" if plan.tuned_on else ""
            has_default |= method.draws_views and "last_epochs" not in values
        line = (str(batch_size_of(name, setting)), texts, source, printed.get(name, NOTHING))
        rows.append(Row(method.title, tuple(map(Entry, line))))
    for i, (title, text) in enumerate(others.items()):
        entries = tuple(map(Entry, (*[NOTHING] * (len(COLUMNS) - 1), text)))
        rows.append(Row(title, entries, begins_part=i == 0))
    heads = tuple((name,) for name in COLUMNS)
    notes = [
        *([NOTE] if published else []),
        *([NOTE_ON_SCHEDULE] if has_default else []),
        *([NOTE_ON_LAMBDA] if printed else []),
    ]
    return Table(heads, tuple(rows), title=plan.title, notes=tuple(notes))


def _printed(setting: str) -> tuple[dict[str, str], dict[str, str]]:
    """The paper's table in words: of our methods by their names, and of others by their titles."""
    if setting not in PAPER:
        return {}, {}
    with PRINTED.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    ours = {name: line[setting] for line in lines for name in line["ours"].split()}
    return ours, {line["method"]: line[setting] for line in lines if not line["ours"]}


def main() -> None:
    """Print the table of a setting, or of the paper's two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--setting", nargs="+", default=PAPER, metavar="NAME")
    try:
        for number, setting in enumerate(parser.parse_args().setting):
            shown = table(setting)
            print("\n" * bool(number) + f"{shown.title}\n\n{as_text(shown)}")
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
