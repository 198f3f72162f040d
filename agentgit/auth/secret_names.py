"""Names that look like those of secrets, and names that a user excludes: their values are not stored as metadata."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from agentgit.errors import InvalidInput

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ANYWHERE = re.compile(
    r"api-?key|access-?key|private-?key|secret|passw|pass-?phrase|pass-?code|authorization|credential|cookie|bearer"
)
_WHOLE_WORDS = frozenset({"jwt", "otp", "pwd"})
_LAST_WORDS = frozenset({"auth", "key"})


@lru_cache(1024)  # a run saves many checkpoints with the same few names
def is_secret_name(name: str) -> bool:
    """Return whether a name looks like that of a secret. Upper and lower case, and separators, make no difference.

    Such a name contains `api key`, `access key`, `private key`, `secret`, `password`, `passphrase`, `passcode`,
    `authorization`, `credential`, `cookie` or `bearer`, or a word that ends with `token`, or the word `jwt`, `otp` or
    `pwd`, or its last word is `key` or `auth`. Words end at capitals and at everything that is not a letter.

    Args:
        name: The name of a setting.

    Example:
        >>> [name for name in ("openaiApiKey", "X-Auth-Token", "DB_PASSWORD", "stripe_key") if not is_secret_name(name)]
        []
        >>> [name for name in ("user_id", "max_tokens", "keyboard", "author") if is_secret_name(name)]
        []
    """
    words = [word.lower() for word in _WORD.findall(name)]
    return (
        _ANYWHERE.search("-".join(words)) is not None
        or any(word.endswith("token") or word in _WHOLE_WORDS for word in words)
        or (bool(words) and words[-1] in _LAST_WORDS)
    )


def excluded_names(names: Collection[str]) -> frozenset[str]:
    """Return the names that a user excludes from the metadata.

    Raises:
        InvalidInput: It is one string, or has something else than strings.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InvalidInput(
            f"exclude_metadata must be a list of names, not {names!r}; write exclude_metadata=['customer_email']."
        )
    return frozenset(names)
