"""The research agent in `examples/` does what its README says."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "research_agent"


def test_the_research_agent_takes_a_report_back(tmp_path):
    """The second report goes with its turn, the first one stays, and the commands of the README work afterwards."""

    def run(*command):
        modules = [EXAMPLE.parents[1], EXAMPLE.parents[1] / ".deepagents"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, modules))}
        result = subprocess.run(  # noqa: S603  # our own commands
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    told = run(sys.executable, str(EXAMPLE / "research.py"))
    assert re.findall(r"Files: (.*)", told) == ["/chairs.md /sofas.md", "/chairs.md", "/chairs.md /tables.md"]
    lines = re.findall(r"^agentgit .*", (EXAMPLE / "README.md").read_text(), re.MULTILINE)
    outputs = [run("bash", "-c", line) for line in lines]
    assert all(outputs)
    assert "before: write about sofas" in outputs[lines.index("agentgit tree furniture")]
