"""Scripts that run, tune and report comparisons; run them from the root of the checkout."""

from importlib.util import find_spec

_missing = [name for name in ("optuna", "psutil", "tqdm") if find_spec(name) is None]
if _missing:
    raise ImportError(
        f"Expected the packages of the benchmarks, got none by the name of {', '.join(_missing)}: "
        'install them with `pip install ".[benchmarks]"`.'
    )
