"""Credentials: passwords, device tokens, API keys and JSON Web Tokens.

A device token (a device cookie in OWASP's terms) marks a device on which a user has logged in before. Failed logins on
that device are counted separately, so other people's wrong passwords do not lock the user out there. The token does not
log anybody in. Nothing is stored: the token is signed with the hash of the password, so a new password invalidates it.
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

from agentgit.auth.sharing import base36, parse_base36
from agentgit.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from pwdlib import PasswordHash

SHORTEST_PASSWORD, LONGEST_PASSWORD = 10, 1000
"""Limits of a password's length in characters; hashing longer ones would let strangers keep the server busy."""


def require_password(password: object) -> str:
    """Check that a value can be a password and return it."""
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
    """Hash a password for storage in the database."""
    return _hasher().hash(password)


def is_password_of(password: object, stored_hash: str | None) -> bool:
    """Return whether a password matches a stored hash; None never matches but takes the same time."""
    is_hashable = isinstance(password, str) and len(password) <= LONGEST_PASSWORD and _can_be_hashed(password)
    matches = _hasher().verify(str(password) if is_hashable else "", stored_hash or _dummy_hash())
    return matches and is_hashable and stored_hash is not None


def rehash_if_outdated(password: str, stored_hash: str) -> str | None:
    """Return a new hash of a password if its stored hash has outdated parameters; None if it is up to date."""
    hasher = _hasher()
    return hasher.hash(password) if hasher.current_hasher.check_needs_rehash(stored_hash) else None


@functools.cache
def _hasher() -> PasswordHash:
    try:
        from pwdlib import PasswordHash
    except ModuleNotFoundError as error:
        raise Unavailable('Passwords need argon2. Run: pip install "agentgit[auth]"') from error
    return PasswordHash.recommended()


@functools.cache
def _dummy_hash() -> str:
    return _hasher().hash("of nobody")


DEVICE_TOKEN_LIFETIME = timedelta(days=365)
"""How long a device token is valid after a login."""


def device_token(password_hash: str, user_id: int, now: datetime) -> str:
    """Create a token for the device of a user who has just logged in."""
    payload = f"{secrets.token_urlsafe(16)}.{int((now + DEVICE_TOKEN_LIFETIME).timestamp())}"
    return f"{payload}.{_signature(password_hash, user_id, payload)}"


def device_of(token: str, password_hash: str, user_id: int, now: datetime) -> str | None:
    """Return the device of a token; None if the token is not valid for this user, this password and this time.

    Example:
        >>> from datetime import UTC
        >>> now = datetime.now(UTC)
        >>> token = device_token("hash", 7, now)
        >>> device_of(token, "hash", 7, now) == token.split(".")[0]
        True
        >>> device_of(token, "hash of another", 7, now), device_of(token, "hash", 8, now)
        (None, None)
    """
    payload, _, signature = token.rpartition(".")
    expected = _signature(password_hash, user_id, payload)
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode()):
        return None
    device, _, expiry = payload.partition(".")
    return device if now.timestamp() < int(expiry) else None


def _signature(password_hash: str, user_id: int, payload: str) -> str:
    text = f"agentgit device\0{user_id}\0{payload}"
    return hmac.new(password_hash.encode(), text.encode("utf-8", "replace"), "sha256").hexdigest()


KEY_PREFIX = "agit"
"""The prefix of the text of a key, by which people and secret scanners recognize it."""

BROWSER_KEY_NAME = "browser"
"""The name of the keys that logins create, in a browser or over HTTP; they are revoked together with tokens."""


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """An API key, without its secret.

    Args:
        id: The id in the database.
        user_id: The id of the user for whom the key acts.
        name: The purpose of the key.
        scopes: The part of its user's rights that the key has.
        created_at: The time of creation, aware UTC.
        expires_at: The time of expiry, aware UTC; None if it does not expire.
        last_used_at: The time of the last use, to the minute, aware UTC; None if it was never used.
        revoked_at: The time of revocation, aware UTC; None if it is not revoked.
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
    """A newly created API key with its secret.

    Args:
        key: The key.
        secret: The text that a program presents. It is available only here; the database stores only a hash.
    """

    key: ApiKey
    secret: str = field(repr=False)


def key_text(tenant_id: int, key_id: int, secret: str) -> str:
    """Format the text of an API key."""
    return f"{KEY_PREFIX}_{base36(tenant_id)}_{base36(key_id)}_{secret}"


def key_parts(text: str) -> tuple[int, int, str] | None:
    """Parse the text of an API key into tenant id, key id and secret; None if it is not one.

    Example:
        >>> key_parts(key_text(7, 46, "a_secret"))
        (7, 46, 'a_secret')
        >>> key_parts("agit_7") is None
        True
    """
    parts = text.split("_", 3)
    if len(parts) != 4 or parts[0] != KEY_PREFIX or len(text) > 200:
        return None
    return parse_base36(parts[1]), parse_base36(parts[2]), parts[3]


SHARED_KEY_ALGORITHMS = ("HS256", "HS384", "HS512")
"""Algorithms in which the signer and the verifier share one key."""

PUBLIC_KEY_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms with a public key for verification."""

MAX_TOKEN_LENGTH = 8192
"""The maximum length of a token in characters."""

MIN_SHARED_KEY_BYTES = 32
"""The minimum length of a shared key in bytes."""


@dataclass(frozen=True)
class Claims:
    """The claims of a verified token."""

    user_name: str
    issued_at: datetime
    expires_at: datetime
    user_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class JWT:
    """Rules for verifying JSON Web Tokens, passed to `agentgit.open(jwt=...)`. Give either `key` or `jwks`.

    Args:
        algorithms: The accepted algorithms, like `["RS256"]`. Shared-key algorithms (HS…) cannot be combined with
            public-key ones.
        key: The public key as PEM, or the shared secret.
        jwks: The public keys as a JSON Web Key Set, either a mapping or its JSON text.
        issuer: The required value of `iss`; None accepts any issuer that the key signs for.
        audience: The required value of `aud`; None accepts only tokens without one.
        user_claim: The claim that contains the user's name. A token issued before the last user of that name was erased
            is rejected.
        id_claim: The claim that contains the user's id, the value of `repo.users.find(name).id`. A token without it, or
            with the id of another user, is then rejected. None identifies the user by name alone.
        leeway: The accepted clock difference in seconds.
        create_users: True to create users who do not exist.
        enabled: False rejects all tokens, as does `$AGENTGIT_JWT=off`.

    Raises:
        InvalidInput: The rules cannot verify any token, or would accept tokens that they should not.

    Example:
        >>> JWT(algorithms=["none"], key="x")
        Traceback (most recent call last):
        agentgit.errors.InvalidInput: ['none'] are not supported algorithms; give one or more of HS256, ..., EdDSA.
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
        algorithms = [self.algorithms] if isinstance(self.algorithms, str) else list(self.algorithms)
        if not algorithms or not set(algorithms) <= {*SHARED_KEY_ALGORITHMS, *PUBLIC_KEY_ALGORITHMS}:
            raise InvalidInput(
                f"{algorithms!r} are not supported algorithms; give one or more of "
                f"{', '.join((*SHARED_KEY_ALGORITHMS, *PUBLIC_KEY_ALGORITHMS))}."
            )
        is_shared = set(algorithms) <= set(SHARED_KEY_ALGORITHMS)
        if not is_shared and not set(algorithms) <= set(PUBLIC_KEY_ALGORITHMS):
            raise InvalidInput("HS… and public-key algorithms cannot be combined. Give one kind only.")
        if (self.key is None) == (self.jwks is None) or (is_shared and self.key is None):
            raise InvalidInput("Give either a key or, for public-key algorithms, a JWKS, but not both.")
        if is_shared:
            self._require_secret()
        if self.id_claim is not None and self.create_users:
            raise InvalidInput("Give id_claim or create_users, not both: a token has no id for a new user.")
        object.__setattr__(self, "algorithms", tuple(algorithms))

    def _require_secret(self) -> None:
        key = self.key.encode() if isinstance(self.key, str) else self.key or b""
        if b"-----BEGIN" in key or len(key) < MIN_SHARED_KEY_BYTES:
            raise InvalidInput(
                f"A shared key must be a secret of at least {MIN_SHARED_KEY_BYTES} bytes, and not a PEM key."
            )


def claims_of(token: str, jwt: JWT) -> Claims | None:
    """Verify a token and return its claims; None if the token is invalid for any reason."""
    try:
        import jwt as pyjwt
    except ModuleNotFoundError as error:
        raise Unavailable('Tokens need PyJWT. Run: pip install "agentgit[auth]"') from error
    if not jwt.enabled or len(token) > MAX_TOKEN_LENGTH:
        return None
    try:
        key = jwt.key if jwt.key is not None else _public_key_of(token, jwt)
        payload = pyjwt.decode(
            token,
            key,
            algorithms=list(jwt.algorithms),
            issuer=jwt.issuer,
            audience=jwt.audience,
            leeway=jwt.leeway,
            options={"require": ["exp", jwt.user_claim]},
        )
        name, user_id = payload[jwt.user_claim], None
        if jwt.id_claim is not None:
            user_id = int(payload[jwt.id_claim])
        expires_at = datetime.fromtimestamp(payload["exp"] + jwt.leeway, UTC)
        issued_at = datetime.fromtimestamp(payload.get("iat", 0), UTC)
    except (pyjwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, OSError, StopIteration):
        return None
    return Claims(name, issued_at, expires_at, user_id) if isinstance(name, str) and name else None


def _public_key_of(token: str, jwt: JWT) -> Any:
    """Return the public key that a token names, or the only key if the token names none."""
    import jwt as pyjwt

    key_set = json.loads(jwt.jwks) if isinstance(jwt.jwks, str) else dict(jwt.jwks or {})
    keys = [key for key in pyjwt.PyJWKSet.from_dict(key_set).keys if key.key_type != "oct"]
    kid = pyjwt.get_unverified_header(token).get("kid")
    if kid is None and len(keys) == 1:
        return keys[0]
    return next(key for key in keys if key.key_id == kid and kid is not None)
