"""`python -m bench [--quick] [--only SUBJECT] [--where FOLDER] [--json FILE]`."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import orjson

from bench import fork, log, measure, size, start, turn
from bench.stage import FULL, QUICK, Stage

SUBJECTS = {
    "turn": turn.measure,
    "size": size.measure,
    "fork": fork.measure,
    "log": log.measure,
    "import": start.measure,
}


def main() -> None:
    """Measure, and print what was found."""
    options = _options()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.where) as folder:
        where = Path(folder)
        facts = measure.machine(where)
        print(measure.facts(facts), flush=True)
        subjects = {}
        with Stage(where=where, scale=QUICK if options.quick else FULL) as stage:
            for name in options.only or SUBJECTS:
                subjects[name] = SUBJECTS[name](stage)
                print(f"\n{measure.table(subjects[name])}", flush=True)
    print(f"\nAll of this took {time.monotonic() - began:.0f} s.")
    if options.json:
        found = {name: subject.to_dict() for name, subject in subjects.items()}
        options.json.write_bytes(orjson.dumps({"machine": facts, "quick": options.quick, "subjects": found}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure agentgit beside its alternatives.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter conversations, in a minute")
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="one subject; may be given several times")
    parser.add_argument("--where", type=Path, help="a folder on the disk to measure on; default: the temporary one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")
    options = parser.parse_args()
    if options.where is not None and not options.where.is_dir():
        parser.error("--where names no folder; make it first, on the disk to measure on.")
    return options


if __name__ == "__main__":
    main()
