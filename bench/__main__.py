"""The command `python -m bench [--quick] [--only SUBJECT] [--where FOLDER] [--json FILE]`."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import orjson

from bench import (
    aims,
    compare,
    find,
    first,
    fork,
    history,
    large,
    log,
    measure,
    memory,
    model,
    rerun,
    served,
    size,
    start,
    turn,
    upkeep,
)  # fmt: skip
from bench.honest import explored, faults, overhead, payments
from bench.multiuser import executors, process, sessions, turns
from bench.saver import forks, lists, long, puts
from bench.stage import FULL, QUICK, Stage
from bench.workspace import snapshots, undo

SUBJECTS = {
    "turn": turn.measure,
    "graph": served.measure,
    "first": first.measure,
    "large": large.measure,
    "model": model.measure,
    "size": size.measure,
    "fork": fork.measure,
    "history": history.measure,
    "log": log.measure,
    "compare": compare.measure,
    "find": find.measure,
    "import": start.measure,
    "upkeep": upkeep.measure,
    "memory": memory.measure,
    "rerun": rerun.measure,
    "rerun-workers": rerun.measure_workers,
    "honest-payments": payments.measure,
    "honest-faults": faults.measure,
    "honest-explored": explored.measure,
    "honest-overhead": overhead.measure,
    "saver-turn": long.turn,
    "saver-size": long.size,
    "saver-put": puts.measure,
    "saver-list": lists.measure,
    "saver-fork": forks.measure,
    "multiuser-turns": turns.measure,
    "multiuser-process": process.measure,
    "multiuser-sessions": sessions.measure,
    "multiuser-executors": executors.measure,
    "workspace-snapshots": snapshots.measure,
    "workspace-undo": undo.measure,
}

GROUPS = {
    group: tuple(name for name in SUBJECTS if name.startswith(f"{group}-"))
    for group in ("saver", "honest", "multiuser", "workspace")
}
"""The subjects of each group, by the name of the group."""


def main() -> None:
    """Run the benchmarks, and print the results."""
    options = _options()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that files and databases are deleted, too
    with tempfile.TemporaryDirectory(dir=options.where) as folder:
        where = Path(folder)
        facts = measure.machine(where)
        print(f"The machine\n\n{measure.facts(facts)}", flush=True)
        subjects = {}
        with Stage(where=where, scale=QUICK if options.quick else FULL) as stage:
            for name in _chosen(options.only or SUBJECTS):
                subjects[name] = subject = SUBJECTS[name](stage)
                print(f"\n{subject.title}\n{subject.note}\n\n{measure.table(subject)}", flush=True)
    if reached := aims.table(subjects):
        print(f"\n{aims.TITLE}\n\n{reached}")
    print(f"\nAll of this took {time.monotonic() - began:.0f} s.")
    if options.json:
        found = {name: subject.to_dict() for name, subject in subjects.items()}
        options.json.write_bytes(orjson.dumps({"machine": facts, "quick": options.quick, "subjects": found}))


def _chosen(names: Iterable[str]) -> dict[str, None]:
    """Return each subject once, in the requested order."""
    return dict.fromkeys(subject for name in names for subject in GROUPS.get(name, (name,)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure agentgit beside its alternatives.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter conversations, in a minute")
    subjects = [*SUBJECTS, *GROUPS]
    parser.add_argument("--only", action="append", choices=subjects, help="one subject; may be given several times")
    parser.add_argument("--where", type=Path, help="a folder on the disk to measure on; default: the temporary one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")
    options = parser.parse_args()
    if options.where is not None and not options.where.is_dir():
        parser.error("--where names no folder; make it first, on the disk to measure on.")
    return options


if __name__ == "__main__":
    main()
