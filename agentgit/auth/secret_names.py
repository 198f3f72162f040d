"""Names that look like those of secrets, and names that a user excludes: their values are not stored as metadata."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from agentgit.errors import InvalidInput

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ANYWHERE = re.compile(
    r"api-?key|access-?key|private-?key|secret|passw|pass-?phrase|pass-?code|authorization|credential|cookie|bearer"
    r"|(access|auth|refresh)-?token"
)
_WHOLE_WORDS = frozenset({"auth", "jwt", "otp", "pass", "pwd"})
_HARMLESS_WORDS = frozenset(
    {"donkey", "flunkey", "hockey", "hotkey", "jockey", "lackey", "monkey", "turkey", "whiskey"}
)
"""The words that end with `key` and do not name a key."""

_HARMLESS_NAMES = frozenset({"langgraph_auth_permissions", "langgraph_auth_user", "langgraph_auth_user_id"})
"""The names that LangGraph's server gives to the user of a run, who is no secret."""


@lru_cache(1024)  # a run saves many checkpoints with the same few names
def is_secret_name(name: str) -> bool:
    """Return whether a name looks like that of a secret. Upper and lower case, and separators, make no difference.

    Such a name contains one of the following. Words end at capitals and at everything that is not a letter.

    - `api key`, `access key`, `private key`, `secret`, `password`, `passphrase`, `passcode`, `authorization`,
      `credential`, `cookie`, `bearer`, `access token`, `auth token` or `refresh token`;
    - a word that ends with `token`, or the word `auth`, `jwt`, `otp`, `pass` or `pwd`;
    - a longer word that ends with `key`, except a few harmless ones;
    - as its last word, `key`, `keys` after another word, or a longer word that ends with `keys`.

    Example:
        >>> [name for name in ("openaiApiKey", "X-Auth-Token", "DB_PASSWORD", "stripe_key") if not is_secret_name(name)]
        []
        >>> [name for name in ("user_id", "max_tokens", "keyboard", "author") if is_secret_name(name)]
        []
    """
    if name in _HARMLESS_NAMES:
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    return (
        _ANYWHERE.search("-".join(words)) is not None
        or any(word.endswith("token") or word in _WHOLE_WORDS or _is_joined_with_key(word) for word in words)
        or (bool(words) and _ends_with_key(words))
    )


def _is_joined_with_key(word: str) -> bool:
    """Return whether a word is a longer one that ends with `key` and may name a key, as `openaikey` does."""
    return word.endswith("key") and word != "key" and word not in _HARMLESS_WORDS


def _ends_with_key(words: list[str]) -> bool:
    """Return whether the last word names keys. The name `keys` alone does not."""
    last = words[-1]
    return last == "key" or (last == "keys" and len(words) > 1) or _is_joined_with_key(last.removesuffix("s"))


def excluded_names(names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InvalidInput(
            f"exclude_metadata must be a list of names, not {names!r}; write exclude_metadata=['customer_email']."
        )
    return frozenset(names)


_VALUES = frozenset({"default", "examples", "const", "value"})
"""The keys of a schema with values."""

_NAMED_SCHEMAS = frozenset({"properties", "$defs", "definitions"})
"""The keys of a schema with other schemas, by names that are not those of values."""


def without_secrets(value: Any, *, is_schema_of_secret: bool = False) -> Any:
    """Return JSON without headers and without what has a name like that of a secret.

    Where such a name is that of a schema, the schema stays, without the value that it gives.

    Example:
        >>> without_secrets({"url": "https://a", "headers": {"X": "1"}, "api_key": "k"})
        {'url': 'https://a'}
        >>> without_secrets({"properties": {"api_key": {"type": "string", "default": "k"}}})
        {'properties': {'api_key': {'type': 'string'}}}
    """
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    if not isinstance(value, dict):
        return value
    shown = {}
    for name, item in value.items():
        if name in _NAMED_SCHEMAS and isinstance(item, dict):
            shown[name] = {
                key: without_secrets(schema, is_schema_of_secret=is_secret_name(key))
                for key, schema in item.items()
                if isinstance(schema, dict) or not is_secret_name(key)
            }
        elif not (name == "headers" or is_secret_name(name) or (is_schema_of_secret and name in _VALUES)):
            shown[name] = without_secrets(item)
    return shown
