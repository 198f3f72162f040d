"""The command line. `main` is its entry point; it needs the extra `cli` (typer and rich)."""

import sys


def main() -> None:
    """Run the command line and exit with its exit code."""
    try:
        from agentgit.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write('error: The command line needs typer and rich. Run: pip install "agentgit[cli]"\n')
        sys.exit(1)
    sys.exit(run())
