"""A grid of methods, settings and seeds, or all that a table or figure of the paper needs.

    python -m benchmarks.compare table4 --scale lab --seeds 0 1 --jobs 2 --out results
    python -m benchmarks.compare --methods ewc lwf --settings digits --seeds 0 1 2

Skips what is already there and goes on where it was stopped. A cell that fails is reported with its
reason and does not stop the others; the next call tries it again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path

from benchmarks.analyses import ANALYSES
from benchmarks.cells import Cell, grid, parse_changes, result_path, result_there
from benchmarks.experiments import EXPERIMENTS
from benchmarks.hyperparameters import chosen_values, has_values
from benchmarks.live import run_grid
from benchmarks.methods import METHODS
from benchmarks.names import SEED, expect_known
from benchmarks.pool import add_pool_arguments, pool_of
from benchmarks.run import remove_checkpoints
from benchmarks.settings import SCALES, SETTINGS
from benchmarks.training import expect_buildable
from benchmarks.trials import choose
from benchmarks.tune import complete, to_tune, tune
from benchmarks.whole_files import expect_writable
from benchmarks.without_runs import COMMANDS


def sort_out(cells: Iterable[Cell], folder: Path) -> tuple[list[Cell], list[Cell], dict[Cell, str]]:
    """Which cells are to be run, which are done, and which cannot be run, with the reason."""
    missing, done, refused = [], [], {}
    for cell in dict.fromkeys(cells):
        try:
            if result_there(cell, folder) is not None:
                done.append(cell)
            else:
                cell.expect_values()
                if cell.changes and cell.method in METHODS:
                    _expect_buildable(dataclasses.replace(cell, seed=0))
                missing.append(cell)
        except (ValueError, OSError) as error:
            refused[cell] = str(error)
    return missing, done, refused


_expect_buildable = functools.cache(expect_buildable)  # of each of the seeds


def cells_of(words: argparse.Namespace) -> list[Cell]:
    """The cells that the command line asks for.

    Raises:
        ValueError: Neither a table or figure nor methods and settings, or an unknown name.
    """
    if words.experiment in COMMANDS:
        raise ValueError(
            f"Expected a table or figure with runs, got '{words.experiment}', which needs none: "
            f"`{COMMANDS[words.experiment]}` prints it."
        )
    if words.experiment:
        if words.settings or words.changes or words.ssl:
            raise ValueError(
                f"Expected '{words.experiment}' alone, whose settings and changes are its own, got "
                "--settings, --set or --ssl as well: name --methods and --settings instead."
            )
        experiment = EXPERIMENTS[expect_known("table or figure", words.experiment, EXPERIMENTS)]
        return experiment.cells(words.scale or "paper", words.seeds, words.methods)
    if words.scale:
        raise ValueError(
            f"Expected --scale with a table or figure alone, got --scale {words.scale}: name "
            "settings of that scale, such as lab-cifar100-10."
        )
    if not (words.methods and words.settings):
        given = [f"--{name}" for name in ("methods", "settings") if getattr(words, name)]
        raise ValueError(
            "Expected a table or figure, or --methods and --settings, got "
            f"{f'{given[0]} alone' if given else 'neither'}. There are {', '.join(EXPERIMENTS)}."
        )
    changes = parse_changes([*words.changes, *([f"ssl={words.ssl}"] if words.ssl else [])])
    return grid(words.methods, words.settings, words.seeds, [changes])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="\n\n".join(
            textwrap.fill(f"{title}: {', '.join(names)}", break_on_hyphens=False)
            for title, names in (("methods", [*METHODS, *ANALYSES]), ("settings", SETTINGS))
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", nargs="?", help=f"one of {', '.join(EXPERIMENTS)}")
    parser.add_argument(
        "--scale", help=f"of a table or figure: one of {', '.join(SCALES)}; default: paper"
    )
    parser.add_argument(
        "--methods", nargs="+", help="see below; with a table: only these of its methods"
    )
    parser.add_argument("--settings", nargs="+", help="see below")
    parser.add_argument("--seeds", nargs="+", type=SEED, default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="changes",
        help="a hyperparameter; benchmarks/README.md says which there are",
    )
    parser.add_argument("--ssl", help="give baselines this self-supervised loss")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--tune", action="store_true", help="first choose what was not published")
    add_pool_arguments(parser)
    return parser


def _tune(cells: Iterable[Cell], words: argparse.Namespace) -> None:
    """Choose the hyperparameters of the cells' methods that have a grid, and no values yet.

    Raises:
        ValueError: A method has no row of a trial.
    """
    methods: dict[str, dict[str, None]] = {}
    wanted = ((cell.setting, method) for cell in cells for method in cell.sources)
    for setting, method in wanted:
        source = SETTINGS[setting].tuned_on or setting
        if method in to_tune(source) and not has_values(method, source):
            methods.setdefault(source, {})[method] = None
    for setting, chosen in methods.items():
        print(f"tuning {', '.join(chosen)} in {setting}, on the validation split", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            run = pool_of(words, Path(folder))
            failures = tune(setting, chosen, [0], run, folder=Path(folder))
        for cell, reason in failures.items():
            print(f"failed: {cell.name}: {reason}")
        _, refused = choose(setting, complete(chosen, failures), [0])
        for reason in refused.values():
            print(f"failed: {reason}")


def main() -> None:
    """Run a grid from the command line; ends with 1 if cells failed."""
    parser = _parser()
    words = parser.parse_args()
    folder = words.out.absolute()
    try:
        cells = list(dict.fromkeys(cells_of(words)))
        chosen_values()  # refuses a file that was altered, before any work
        run = pool_of(words, folder)
        if not all(result_path(cell, folder).exists() for cell in cells):
            expect_writable(folder)
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    try:
        if words.tune:
            _tune(cells, words)
        missing, done, refused = sort_out(cells, folder)
        for cell in done:  # of a run that was killed right after it had written its result
            remove_checkpoints(cell, folder)
        print(f"{len(cells)} cells: {len(done)} are there, {len(missing)} to run", flush=True)
        for cell, reason in refused.items():
            print(f"skipped: {cell.name}: {reason}")
        failures = run_grid(missing, run) if missing else {}
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        missing, _, refused = sort_out(cells, folder)
        left = len(missing) + (len(refused) if words.tune else 0)  # what tuning has not come to
        sys.exit(f"\nstopped with {left} cells left; the same command goes on")
    # Of another grid that was at work in this folder, and has ended meanwhile.
    done = sort_out(failures, folder)[1]
    failures = {cell: reason for cell, reason in failures.items() if cell not in done}
    print(f"{len(missing) - len(failures)} run, {len(failures)} failed, {len(refused)} skipped")
    for cell, reason in failures.items():
        print(f"failed: {cell.name}: {reason}")
    sys.exit(1 if failures or refused else 0)


if __name__ == "__main__":
    main()
