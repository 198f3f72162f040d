"""The SQL that makes our schema on servers which spread one database over several machines."""

from __future__ import annotations

from agentgit.errors import InvalidInput
from agentgit.store.schema import schema
from agentgit.store.sql.tables import METADATA

KINDS = ("citus", "cockroach", "yugabyte")
"""The servers that there is a script for; none of them has run it here."""

_UNKNOWN = ("FUNCTION agentgit_", "TRIGGER ", "POLICY ", "ROW LEVEL SECURITY")
"""The statements that Citus cannot run on distributed tables, nor CockroachDB as they are: trail trigger, walls."""

_GIN = "USING gin (words) WITH (gin_pending_list_limit=256)"


def spread(kind: str) -> str:
    """Write the SQL for an empty database of a kind of server.

    Args:
        kind: `citus`, `cockroach` or `yugabyte`.

    Raises:
        InvalidInput: There is no script for it.

    Example:
        >>> "SELECT create_reference_table('tenant');" in spread("citus")
        True
    """
    if kind not in KINDS:
        raise InvalidInput(f"There is no script for {kind!r}; there are postgresql, sqlite, {', '.join(KINDS)}.")
    written = schema.script("postgresql")
    if kind == "yugabyte":
        return written.replace(_GIN, "USING ybgin (words)")
    statements = [one for one in written.split(";\n\n") if not any(word in one for word in _UNKNOWN)]
    plain = ";\n\n".join(statements)
    return plain + _distributed() if kind == "citus" else plain.replace(_GIN, "USING gin (words)")


def _distributed() -> str:
    """Write the SQL that distributes the tables by tenant, all in the same way, with referenced tables first."""
    names = [table.name for table in METADATA.sorted_tables if table.name != "tenant"]
    lines = ["SELECT create_reference_table('tenant');"]
    for name in names:
        beside = "none" if name == names[0] else _quoted(names[0])
        lines.append(f"SELECT create_distributed_table('{_quoted(name)}', 'tenant_id', colocate_with => '{beside}');")
    return "\n".join(["", *lines, ""])


def _quoted(name: str) -> str:
    return f'"{name}"'
