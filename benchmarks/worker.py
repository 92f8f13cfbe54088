"""A process of a pool: `benchmarks.run`, ended as soon as the process that started it is gone."""

from __future__ import annotations

import os
import threading


def end_with_parent() -> None:
    """Watch the input, whose other end the parent holds: it closes when that process dies."""

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin: its lock would outlive the end of this process
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()  # before the slow imports, so that none of them outlives the parent

    from benchmarks.run import main

    main()
