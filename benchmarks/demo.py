"""The main job on real data that ships with scikit-learn: `make demo`.

    python -m benchmarks.demo [--out demo-results] [--setting digits] [--seed 0]

Trains Naive, EWC, LwF and DLCPA with MoCoV2 on the same stream, network, epochs and seed, prints
one table and writes a JSON a run, figures and a page. A run that is there already is taken as it
is.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.cells import grid, result_path, result_there
from benchmarks.experiments import title_of
from benchmarks.markup import as_text
from benchmarks.names import COUNT, SEED
from benchmarks.report import make_sections, write_report
from benchmarks.run import run_cell
from benchmarks.settings import SETTINGS
from benchmarks.tables import comparison_table
from benchmarks.whole_files import save_json

METHODS = ("naive", "ewc", "lwf", "dlcpa-mocov2")


def main() -> None:
    """Run the methods in a setting and report them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo-results"))
    parser.add_argument("--setting", default="digits")
    parser.add_argument("--seed", type=SEED, default=0)
    parser.add_argument("--dataset-root", help="folder of data already on disk")
    parser.add_argument(
        "--threads", type=COUNT, default=1, help="of torch; small networks gain nothing from more"
    )
    words = parser.parse_args()
    # Avalanche 0.6.0 on a current numpy and torch warns of what will be removed one day.
    warnings.filterwarnings("ignore", category=DeprecationWarning)

    torch.set_num_threads(words.threads)
    try:
        cells = grid(METHODS, [words.setting], [words.seed])
        found = {cell: result_there(cell, words.out) for cell in cells}
        for cell, result in found.items():
            if result is None:
                cell.expect_values()
    except (ValueError, OSError) as error:
        parser.error(str(error))
    results, paths = [], []
    setting = SETTINGS[words.setting]
    with tqdm(
        total=len(METHODS) * setting.num_experiences,
        unit="task",
        bar_format="{desc:<18}{bar:30} {n}/{total} tasks, {elapsed}",
    ) as bar:
        for cell in cells:
            bar.set_description_str(title_of(cell.method))
            path, result = result_path(cell, words.out), found[cell]
            if result is None:
                result = run_cell(
                    cell, dataset_root=words.dataset_root, on_experience=lambda *_: bar.update()
                )
                paths.append(save_json(result, path))
            else:
                bar.update(setting.num_experiences)
            results.append(result)
    sections = make_sections(results, words.out, setting=words.setting)
    paths += write_report(sections, {}, words.out)
    print(f"\n{setting.title}, seed {words.seed}; accuracies in percent\n")
    print(as_text(comparison_table(results)))
    there = [result_path(cell, words.out) for cell, result in found.items() if result is not None]
    if there:
        print("\nwere there already, and were not run again")
    for path in there:
        print(f"  {path}")
    print("\nwrote")
    for path in paths:
        print(f"  {path}")


if __name__ == "__main__":
    main()
