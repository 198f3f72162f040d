"""Checks to run before you trust agentgit's data to a PostgreSQL-compatible server.

Each rule is a function whose docstring states the requirement. `python -m agentgit.conformance URL` checks all rules
on an empty database. The tests of a backend can check them one by one:

    @pytest.mark.parametrize("rule", RULES, ids=str)
    def test_the_store_keeps_its_contract(rule):
        rule.check(lambda: agentgit.open(URL))
"""

from agentgit.conformance import checkpoints, concurrency, storage, users
from agentgit.conformance.rules import Breach, NotCheckable, Opener, Report, Result, Rule, check

RULES: tuple[Rule, ...] = (
    *storage.SCHEMA_RULES,
    *concurrency.TRANSACTION_RULES,
    *storage.VALUE_RULES,
    *concurrency.CONCURRENCY_RULES,
    *users.RULES,
    *checkpoints.RULES,
)
"""Every rule, in the order in which they are checked."""

__all__ = ["RULES", "Breach", "NotCheckable", "Opener", "Report", "Result", "Rule", "check"]
