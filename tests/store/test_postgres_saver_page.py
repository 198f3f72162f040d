"""What the page of the saver says about replacing PostgresSaver runs, in order, against a real PostgresSaver."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

from command_line import run
from foreign_threads import postgres_origin

TEXT = (Path(__file__).parents[2] / "docs" / "saver.md").read_text()
PAGE = TEXT.partition("## Replace PostgresSaver")[2].partition("\n## ")[0]
BLOCK = re.compile(r"^```(py|sh|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS = "postgresql://user@host/agents"


def test_a_program_moves_from_postgres_saver_by_changing_one_line(postgres_url, recwarn):
    printed, names, shown = io.StringIO(), {}, []
    with postgres_origin(postgres_url) as origin:
        for language, source in BLOCK.findall(PAGE):
            text = source.replace(ADDRESS, origin.url)
            if language == "py":
                with redirect_stdout(printed):
                    exec(compile(text, "saver.md", "exec"), names)  # noqa: S102  # a block of our own page
            elif language == "sh":
                for line in text.splitlines():
                    result = run(*shlex.split(line)[1:])
                    assert result.code == 0, result
            else:
                shown.append(text)
    assert printed.getvalue() == "".join(shown) != ""
    assert not [one for one in recwarn if "threads of LangGraph" in str(one.message)]
