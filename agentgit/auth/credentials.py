"""Credentials: passwords, tokens of devices, API keys, and JSON Web Tokens.

Tokens of devices: where somebody has logged in before, the wrong passwords of others do not keep them out. Nothing is
stored: a token is signed with the hash of the password, so a new password ends all of them (OWASP calls them device
cookies). It lets nobody in; it only has attempts counted apart.
"""

from __future__ import annotations

import functools
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from agentgit.auth.sharing import base36, number_of
from agentgit.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from pwdlib import PasswordHash

SHORTEST_PASSWORD, LONGEST_PASSWORD = 10, 1000
"""Characters of a password; who hashes longer ones for strangers can be kept busy by them."""


def require_password(password: object) -> str:
    """Refuse what no password can be.

    Raises:
        InvalidInput: It is too short or too long; the text does not have it.
    """
    if (
        not isinstance(password, str)
        or not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD
        or not _can_be_hashed(password)
    ):
        raise InvalidInput(f"A password must have {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters.")
    return password


def _can_be_hashed(password: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in password)


def hash_password(password: str) -> str:
    """Return what the database keeps of a password.

    Raises:
        Unavailable: Pwdlib is not installed.
    """
    return _hasher().hash(password)


def is_password_of(password: object, stored: str | None) -> bool:
    """Return whether a password is the one that was hashed; None, of nobody, takes as long and is never.

    Raises:
        Unavailable: Pwdlib is not installed.
    """
    given = isinstance(password, str) and len(password) <= LONGEST_PASSWORD and _can_be_hashed(password)
    matches = _hasher().verify(str(password) if given else "", stored or _of_nobody())
    return matches and given and stored is not None


def renewed(password: str, stored: str) -> str | None:
    """Hash a password anew that was hashed with less work than is usual now; None if it was not."""
    hasher = _hasher()
    return hasher.hash(password) if hasher.current_hasher.check_needs_rehash(stored) else None


@functools.cache
def _hasher() -> PasswordHash:
    try:
        from pwdlib import PasswordHash
    except ModuleNotFoundError as error:
        raise Unavailable('Passwords need argon2. Run: pip install "agentgit[auth]"') from error
    return PasswordHash.recommended()


@functools.cache
def _of_nobody() -> str:
    return _hasher().hash("of nobody")


LASTS = timedelta(days=365)
"""The time for which a device is known after a login."""


def device_token(stored: str, user_id: int, now: datetime) -> str:
    """Make a token for the device of somebody who has shown their password.

    Args:
        stored: The hash of the password.
        user_id: The id of the user.
        now: The time at which they did.
    """
    said = f"{secrets.token_urlsafe(16)}.{int((now + LASTS).timestamp())}"
    return f"{said}.{_signature(stored, user_id, said)}"


def device_of(token: str, stored: str, user_id: int, now: datetime) -> str | None:
    """Return the device that a token is of; None if it does not hold for this user, this password and this time.

    Example:
        >>> from datetime import UTC
        >>> now = datetime.now(UTC)
        >>> token = device_token("hash", 7, now)
        >>> device_of(token, "hash", 7, now) == token.split(".")[0]
        True
        >>> device_of(token, "hash of another", 7, now), device_of(token, "hash", 8, now)
        (None, None)
    """
    said, _, signature = token.rpartition(".")
    expected = _signature(stored, user_id, said)
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode()):
        return None
    device, _, ends = said.partition(".")
    return device if now.timestamp() < int(ends) else None


def _signature(stored: str, user_id: int, said: str) -> str:
    text = f"agentgit device\0{user_id}\0{said}"
    return hmac.new(stored.encode(), text.encode("utf-8", "replace"), "sha256").hexdigest()


PREFIX = "agit"
"""The beginning of the text of a key, by which people and scanners of secrets recognise it."""

BROWSER = "browser"
"""The name of the key of a login, in a browser or over HTTP: it ends with the other logins."""


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """An API key, without its secret.

    Args:
        id: The identity in the database.
        user_id: The id of the user for whom it acts.
        name: The purpose of the key.
        scopes: The part of its user's rights that it has.
        created_at: The time at which it was made, aware UTC.
        expires_at: The time at which it ends, aware UTC; None is never.
        last_used_at: The time at which it was last used, to the minute, aware UTC; None is never.
        revoked_at: The time at which it was revoked, aware UTC; None if it was not.
    """

    id: int
    user_id: int
    name: str
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True)
class NewKey:
    """An API key that was just made.

    Args:
        key: The key.
        secret: Its text, which is what a program shows; it is only here, and the database has only its hash.
    """

    key: ApiKey
    secret: str = field(repr=False)


def key_text(tenant_id: int, key_id: int, secret: str) -> str:
    """Write the text of a key."""
    return f"{PREFIX}_{base36(tenant_id)}_{base36(key_id)}_{secret}"


def key_parts(text: str) -> tuple[int, int, str] | None:
    """Read the tenant, the id and the secret of a key's text; None if it is none.

    Example:
        >>> key_parts(key_text(7, 46, "a_secret"))
        (7, 46, 'a_secret')
        >>> key_parts("agit_7") is None
        True
    """
    parts = text.split("_", 3)
    if len(parts) != 4 or parts[0] != PREFIX or len(text) > 200:
        return None
    return number_of(parts[1]), number_of(parts[2]), parts[3]


SHARED = ("HS256", "HS384", "HS512")
"""Algorithms with one key for who signs and who verifies."""

PUBLIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms with a public key."""

LONGEST_TOKEN = 8192
"""Characters of a token."""

SHORTEST_KEY = 32
"""Bytes of a shared key."""


@dataclass(frozen=True)
class Claims:
    """The claims of a verified token.

    Args:
        user_name: The name of the user.
        issued_at: The time of issue; a token without one counts as older than all others.
        expires_at: The time when the token expires.
        user_id: The id of the user, if the rules name a claim for it.
    """

    user_name: str
    issued_at: datetime
    expires_at: datetime
    user_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class JWT:
    """Rules for verifying tokens; passed to `agentgit.open(jwt=...)`. Pass a key or a set of keys.

    Args:
        algorithms: The accepted algorithms, like `["RS256"]`; never shared-key ones (HS…) together with public-key
            ones.
        key: The public key as PEM, or the shared secret.
        jwks: The public keys as JSON Web Key Set, a mapping or its text.
        issuer: The required value of `iss`; None accepts any that the key signs for.
        audience: The required value of `aud`; None accepts only tokens without one.
        user_claim: The claim that has the user's name. A token issued before the last user of a name was erased belongs
            to nobody.
        id_claim: The claim that has the user's id, as `repo.users.find(name).id` is; a token without it, or with the id
            of another user, is then rejected. None goes by the name alone.
        leeway: The seconds by which the clocks may differ.
        create_users: True to create users who do not exist.
        enabled: False rejects all tokens; so does `$AGENTGIT_JWT=off`.

    Raises:
        InvalidInput: These rules can verify nothing, or more than is meant.

    Example:
        >>> JWT(algorithms=["none"], key="x")
        Traceback (most recent call last):
        agentgit.errors.InvalidInput: algorithms=['none'] is not supported; give one or more of HS256, ..., EdDSA.
    """

    algorithms: Sequence[str]
    key: str | bytes | None = field(default=None, repr=False)
    jwks: Mapping[str, Any] | str | None = field(default=None, repr=False)
    issuer: str | None = None
    audience: str | None = None
    user_claim: str = "sub"
    id_claim: str | None = None
    leeway: float = 10
    create_users: bool = False
    enabled: bool = True

    def __post_init__(self) -> None:
        given = [self.algorithms] if isinstance(self.algorithms, str) else list(self.algorithms)
        if not given or not set(given) <= {*SHARED, *PUBLIC}:
            raise InvalidInput(
                f"algorithms={given!r} is not supported; give one or more of {', '.join((*SHARED, *PUBLIC))}."
            )
        is_shared = set(given) <= set(SHARED)
        if not is_shared and not set(given) <= set(PUBLIC):
            raise InvalidInput("HS… and public-key algorithms cannot be combined. Give one kind only.")
        if (self.key is None) == (self.jwks is None) or (is_shared and self.key is None):
            raise InvalidInput("Give either key=..., or for public-key algorithms jwks=..., but not both.")
        if is_shared:
            self._require_secret()
        if self.id_claim is not None and self.create_users:
            raise InvalidInput("Give id_claim or create_users, not both: a token has no id for a new user.")
        object.__setattr__(self, "algorithms", tuple(given))

    def _require_secret(self) -> None:
        key = self.key.encode() if isinstance(self.key, str) else self.key or b""
        if b"-----BEGIN" in key or len(key) < SHORTEST_KEY:
            raise InvalidInput(f"A shared key must be a secret of at least {SHORTEST_KEY} bytes, and not a PEM key.")


def claims_of(token: str, jwt: JWT) -> Claims | None:
    """Verify a token; None if it does not hold, whatever the cause.

    Raises:
        Unavailable: PyJWT is not installed.
    """
    try:
        import jwt as pyjwt
    except ModuleNotFoundError as error:
        raise Unavailable('Tokens need PyJWT. Run: pip install "agentgit[auth]"') from error
    if not jwt.enabled or len(token) > LONGEST_TOKEN:
        return None
    try:
        key = jwt.key if jwt.key is not None else _key_of(token, jwt)
        said = pyjwt.decode(
            token,
            key,
            algorithms=list(jwt.algorithms),
            issuer=jwt.issuer,
            audience=jwt.audience,
            leeway=jwt.leeway,
            options={"require": ["exp", jwt.user_claim]},
        )
        name, user_id = said[jwt.user_claim], None
        if jwt.id_claim is not None:
            user_id = int(said[jwt.id_claim])
        ends = datetime.fromtimestamp(said["exp"] + jwt.leeway, UTC)
        began = datetime.fromtimestamp(said.get("iat", 0), UTC)
    except (pyjwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, OSError, StopIteration):
        return None
    return Claims(name, began, ends, user_id) if isinstance(name, str) and name else None


def _key_of(token: str, jwt: JWT) -> Any:
    """Find the public key that a token names, or the only one."""
    import jwt as pyjwt

    given = json.loads(jwt.jwks) if isinstance(jwt.jwks, str) else dict(jwt.jwks or {})
    keys = [key for key in pyjwt.PyJWKSet.from_dict(given).keys if key.key_type != "oct"]
    kid = pyjwt.get_unverified_header(token).get("kid")
    if kid is None and len(keys) == 1:
        return keys[0]
    return next(key for key in keys if key.key_id == kid and kid is not None)
