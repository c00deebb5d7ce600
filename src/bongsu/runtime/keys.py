"""The keys that calls are checked against: the API keys, the secrets that sign member tokens, and the keys of a sign-in.

Of several API keys or secrets all are accepted, and the first is the one that is printed or signs: a new one is put before
the old one, and the old one is removed when no client uses it any more.

They come from the settings. For the embedded store they are generated once and kept in the data dir, readable by its owner
only.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from pydantic import TypeAdapter, ValidationError

from bongsu.errors import BadKey, BadSettings, KeysMissing
from bongsu.model import Id, utc_now
from bongsu.runtime.jwks import SignInKeys
from bongsu.settings import Settings

# Pinned: a token may not choose how it is checked.
ALGORITHM = "HS256"
SECRET_BYTES = 32
KEY_LENGTH = 16

_member_id: TypeAdapter[str] = TypeAdapter(Id)

# The log and `bongsu doctor` report it once.
warnings.filterwarnings("ignore", category=jwt.warnings.InsecureKeyLengthWarning)


@dataclass(frozen=True)
class Guests:
    """Members that every caller may act as, as the demo's. Their tokens have a secret that is valid for no other member."""

    secret: str = field(repr=False)
    members: frozenset[str]


@dataclass(frozen=True)
class Keys:
    api_keys: tuple[str, ...] = field(repr=False)
    # Empty if only the sign-in makes member tokens.
    jwt_secrets: tuple[str, ...] = field(repr=False)
    sign_in: SignInKeys | None = field(default=None, compare=False)
    guests: Guests | None = None

    @classmethod
    def load(cls, settings: Settings) -> Keys:
        sign_in = None
        if settings.jwks_url:
            sign_in = SignInKeys(settings.jwks_url, settings.jwt_issuer, settings.audiences)
        if settings.is_embedded:
            return cls(
                settings.keys or (_read_secret(settings.create_data_dir() / "api-key", "bongsu_"),),
                settings.jwt_secrets or (_read_secret(settings.create_data_dir() / "jwt-secret"),),
                sign_in,
            )
        if not (settings.keys and (settings.jwt_secrets or sign_in)):
            has_tokens = settings.jwt_secrets or sign_in
            missing = [
                name for name, given in (("BONGSU_JWT_SECRET", has_tokens), ("BONGSU_API_KEYS", settings.keys)) if not given
            ]
            raise KeysMissing(f"{' and '.join(missing)} not set")
        return cls(settings.keys, settings.jwt_secrets, sign_in)

    @property
    def weakness(self) -> str | None:
        """What is wrong with the keys, if something is. RFC 7518: an HS256 key has at least as many bits as the hash."""
        if any(len(secret.encode()) < SECRET_BYTES for secret in self.jwt_secrets):
            return f"a BONGSU_JWT_SECRET is shorter than {SECRET_BYTES} bytes and can be guessed: choose a longer one"
        if any(len(key) < KEY_LENGTH for key in self.api_keys):
            return f"an API key is shorter than {KEY_LENGTH} characters and can be guessed: choose a longer one"
        return None

    def is_api_key(self, given: str) -> bool:
        """Compare with every key in constant time, so that the time taken does not reveal how near a guess was."""
        matches = [hmac.compare_digest(given.encode(), key.encode()) for key in self.api_keys]
        return any(matches)

    def member_token(self, member_id: str, lifetime: timedelta) -> str:
        if not self.jwt_secrets:
            raise KeysMissing("BONGSU_JWT_SECRET not set, and tokens of the sign-in are made by the sign-in")
        return _sign(member_id, lifetime, self.jwt_secrets[0])

    def with_guests(self, members: Iterable[str]) -> Keys:
        """The same keys, and a new secret for tokens of these members. It is never stored and ends with the process."""
        return replace(self, guests=Guests(secrets.token_urlsafe(SECRET_BYTES), frozenset(members)))

    def guest_token(self, member_id: str, lifetime: timedelta) -> str:
        """A token for one of the guests, not signed with the installation's secret."""
        if self.guests is None or member_id not in self.guests.members:
            raise BadKey("Not a guest")
        return _sign(member_id, lifetime, self.guests.secret)

    async def member_of(self, token: str) -> str:
        return (await self.member_until(token))[0]

    async def member_until(self, token: str) -> tuple[str, datetime]:
        """The member a token was made for, and when it ends. Raises BadKey when it is neither ours nor the sign-in's,
        expired or without end."""
        try:
            header = jwt.get_unverified_header(token)
            if header["alg"] == ALGORITHM:
                claims = self._verify(token)
            elif self.sign_in is not None:
                claims = await self.sign_in.verify(token, header)
            else:
                raise BadKey("The key is not valid")
        except jwt.ExpiredSignatureError:
            raise BadKey("The member token has expired") from None
        except jwt.MissingRequiredClaimError as error:
            raise BadKey(f"The member token has no `{error.claim}`") from None
        except (jwt.InvalidIssuerError, jwt.InvalidAudienceError):
            raise BadKey("The member token is of another issuer (`iss`) or for another audience (`aud`)") from None
        except (jwt.PyJWTError, ValueError, KeyError, TypeError):
            raise BadKey("The key is not valid") from None
        try:
            member_id = _member_id.validate_python(claims["sub"], strict=True)
        except ValidationError:
            raise BadKey("The member token's `sub` is not a member id: 1 to 255 characters, no control characters") from None
        try:
            return member_id, datetime.fromtimestamp(int(claims["exp"]), UTC)
        except (OverflowError, ValueError):
            return member_id, datetime.max.replace(tzinfo=UTC)  # later than a datetime can hold

    def _verify(self, token: str) -> dict[str, Any]:
        """The claims of a token that one of our secrets has signed, or for a guest the guests' secret."""
        for secret in self.jwt_secrets:
            with contextlib.suppress(jwt.InvalidSignatureError):
                return _read_claims(token, secret)
        if self.guests is None:
            raise jwt.InvalidSignatureError
        claims = _read_claims(token, self.guests.secret)
        if claims["sub"] not in self.guests.members:
            raise jwt.InvalidSignatureError
        return claims


def _sign(member_id: str, lifetime: timedelta, secret: str) -> str:
    return jwt.encode({"sub": member_id, "exp": utc_now() + lifetime}, secret, algorithm=ALGORITHM)


def _read_claims(token: str, secret: str) -> dict[str, Any]:
    return jwt.decode(token, secret, algorithms=[ALGORITHM], options={"require": ["exp", "sub"]})


def _read_secret(path: Path, prefix: str = "") -> str:
    """Read the secret at `path`; create it if it is missing. Of several processes at once, one creates it, all read it."""
    try:
        return _read_or_create(path, prefix)
    except OSError as error:
        raise BadSettings(f"{path} cannot be stored: {error.strerror}") from None


def _read_or_create(path: Path, prefix: str) -> str:
    if not path.exists():
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(prefix + secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(descriptor)  # a power cut must not leave an empty file
        try:
            os.link(draft, path)  # atomic, and does not replace the file of another process
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    if kept := path.read_text().strip():
        return kept
    raise BadSettings(f"{path} is empty: remove it, and a new one is created")
