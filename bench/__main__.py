"""The command `python -m bench [--quick] [--only SUBJECT] [--where FOLDER]`."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from bench import clients, files, fork, measure, saver, size, turn
from bench.stage import FULL, QUICK, Stage

SUBJECTS = {
    "turn": turn.measure,
    "saver": saver.measure,
    "fork": fork.measure,
    "files": files.measure,
    "size": size.measure,
    "clients": clients.measure,
}


def main() -> None:
    """Run the benchmarks, and print the results."""
    options = _options()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that files and databases are deleted, too
    with tempfile.TemporaryDirectory(dir=options.where) as folder:
        stage = Stage(Path(folder), QUICK if options.quick else FULL)
        print(f"The machine\n\n{measure.machine(stage.where)}", flush=True)
        for name in dict.fromkeys(options.only or SUBJECTS):
            for table in SUBJECTS[name](stage):
                print(f"\n{table}", flush=True)
    print(f"\nAll of this took {time.monotonic() - began:.0f} s.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure agentgit beside its alternatives.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and short conversations, in a minute")
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="one subject; may be given several times")
    parser.add_argument("--where", type=Path, help="a folder on the disk to measure on; default: the temporary one")
    options = parser.parse_args()
    if options.where is not None and not options.where.is_dir():
        parser.error("--where names no folder; make it first, on the disk to measure on.")
    return options


if __name__ == "__main__":
    main()
