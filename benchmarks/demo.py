"""The main job on real data that ships with scikit-learn: `make demo`.

    python -m benchmarks.demo [--out demo-results] [--setting digits] [--seed 0]

Trains Naive, EWC, LwF and DLCPA with MoCoV2 on the same stream, network, epochs and seed, prints
one table and writes a JSON a run, figures and a page.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.methods import METHODS
from benchmarks.report import text_table, write_report
from benchmarks.run import run_cell, save_result
from benchmarks.settings import SETTINGS


def main() -> None:
    """Run all methods of a setting and report them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo-results"))
    parser.add_argument("--setting", default="digits", choices=SETTINGS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dataset-root", help="folder of data already on disk")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch; small networks gain nothing from more"
    )
    words = parser.parse_args()
    # Avalanche 0.6.0 on a current numpy and torch warns of what will be removed one day.
    warnings.filterwarnings("ignore", category=DeprecationWarning)

    torch.set_num_threads(words.threads)
    results, paths = [], []
    steps = len(METHODS) * SETTINGS[words.setting].num_experiences
    with tqdm(
        total=steps, unit="task", bar_format="{desc:<18}{bar:30} {n}/{total} tasks, {elapsed}"
    ) as bar:
        for method, entry in METHODS.items():
            bar.set_description_str(entry.title)
            result = run_cell(
                method,
                words.setting,
                words.seed,
                dataset_root=words.dataset_root,
                on_experience=lambda _: bar.update(),
            )
            results.append(result)
            paths.append(save_result(result, words.out))
    paths += write_report(results, words.out)
    print(f"\n{SETTINGS[words.setting].title}, seed {words.seed}; accuracies in percent\n")
    print(text_table(results))
    print("\nwrote")
    for path in paths:
        print(f"  {path}")


if __name__ == "__main__":
    main()
