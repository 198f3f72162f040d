"""The JUnit XML of reruns, as CI servers read it."""

import re
import xml.etree.ElementTree as ET

import pytest

from agentgit.render.views.reruns import junit
from agentgit.sessions.rerun import RecordedCall, RerunReport, Reruns, SessionRerun

COUNT, SECONDS, TEXT = r"\d+", r"\d+\.\d+", r"[\s\S]*"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d)?"

SCHEMA = {
    "testsuites": (
        {"tests": COUNT, "failures": COUNT, "errors": COUNT},
        {"name": TEXT, "time": SECONDS},
        {"testsuite"},
    ),
    "testsuite": (
        {"name": TEXT, "tests": COUNT},
        {"failures": COUNT, "errors": COUNT, "skipped": COUNT, "time": SECONDS, "timestamp": TIME, "hostname": TEXT},
        {"testcase"},
    ),
    "testcase": ({"name": TEXT, "classname": TEXT}, {"time": SECONDS}, {"error", "failure"}),
    "error": ({}, {"type": TEXT, "message": TEXT}, set()),
    "failure": ({}, {"type": TEXT, "message": TEXT}, set()),
}
"""The part of jenkins-junit.xsd that reruns and pytest use: required and optional attributes, and children."""

HOSTILE = "]]> <&\"' &#0; \x00\x07\x1b[31m\x7f\x85\u202e\u2066\ud800\ufffe\uffff \U0010ffff \r\n\t"


def require_valid(element):
    """Check an element, and all below it, against the schema."""
    required, optional, children = SCHEMA[element.tag]
    assert required.keys() <= element.attrib.keys() <= required.keys() | optional.keys()
    for name, value in element.attrib.items():
        assert re.fullmatch((required | optional)[name], value), (name, value)
    for child in element:
        assert child.tag in children
        require_valid(child)


def rerun_of(name, **fields):
    """Make the row of a session whose texts are its name."""
    report = RerunReport(
        branch=name,
        source=name,
        status="done",
        seconds=0.25,
        not_made=[RecordedCall(id=1, tool_name=name, args={name: name})],
    )
    return SessionRerun(**{"session": name, "status": "done", "report": report} | fields)


@pytest.mark.parametrize("text", ["plain", HOSTILE, "x" * 1_000_000, ""])
def test_junit_has_the_form_that_ci_servers_read_whatever_the_text(text):
    """Hostile and huge names, verdicts, errors and reports give valid XML, and nothing that controls a terminal."""
    rows = [
        rerun_of(text, verdict=True),
        rerun_of(text, verdict=False),
        rerun_of(text, status="failed", error=text),
        rerun_of(text, verdict=True, error=text),
        SessionRerun(session=text, error=text),
    ]
    written = junit(Reruns(name=text, rows=rows, is_judged=True), 0.9)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", written.decode())
    root = ET.fromstring(written)  # noqa: S314  # our own text
    require_valid(root)
    (suite,) = root
    tags = [[child.tag for child in case] for case in suite]
    assert tags == [[], ["failure"], ["error"], [], ["error"]]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "1", "2")


def test_cases_of_branches_of_one_session_have_names_of_their_own():
    """A CI server joins cases of the same name, so two branches of a session have their names in them."""
    rows = [
        SessionRerun(session="s", status="done", report=RerunReport(branch="again", source=source, status="done"))
        for source in ("main", "retry")
    ]
    (suite,) = ET.fromstring(junit(Reruns(name="again", rows=[*rows, SessionRerun(session="t")]), 0.9))  # noqa: S314
    assert [case.get("name") for case in suite] == ["s@main", "s@retry", "t"]
