"""The User: whom sessions and checkpoints belong to."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class User:
    """Somebody who owns sessions.

    Args:
        id: the identity in the database.
        name: unique in the database.
        created_at: when it was made, aware UTC.
    """

    id: int
    name: str
    created_at: datetime
