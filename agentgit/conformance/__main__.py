"""`python -m agentgit.conformance URL`: check a database against all rules; exit with 1 if one is broken."""

from __future__ import annotations

import argparse
import sys

import agentgit
from agentgit.conformance import RULES, check


def main() -> int:
    """Check all rules, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m agentgit.conformance",
        description="Check that a database keeps the rules that agentgit needs. Give an empty one: sessions are left.",
    )
    parser.add_argument("url", help="a path or a URL; a server's database is made ready with: agentgit db upgrade")
    url = parser.parse_args().url
    try:
        agentgit.open(url).close()
    except agentgit.AgentGitError as error:
        parser.exit(error.exit_code, f"{error}\n")
    report = check(lambda: agentgit.open(url), RULES)
    print(report)  # noqa: T201  # the output of a command
    return 0 if report.has_passed else 1


if __name__ == "__main__":
    sys.exit(main())
