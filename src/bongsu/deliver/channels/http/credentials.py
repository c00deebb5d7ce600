"""Credentials that a setting's URL has in front of its host, as the header that carries them. Pure."""

from __future__ import annotations

import base64
import re
from urllib.parse import SplitResult, unquote, urlsplit

from bongsu.errors import BadSettings


def split_credentials(url: str, setting: str) -> tuple[SplitResult, dict[str, str]]:
    """The URL without them and without a fragment, and the Authorization header if there are any. Raises BadSettings."""
    target = urlsplit(url)
    if not target.hostname:
        raise BadSettings(f"{setting} names no host")
    bare = target._replace(netloc=target.netloc.rpartition("@")[2], fragment="")
    return bare, _authorization(unquote(target.username or ""), unquote(target.password or ""), setting)


def _authorization(user: str, password: str, setting: str) -> dict[str, str]:
    """user:password@ is Basic authentication; :token@ alone is a bearer token."""
    if user:
        return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
    if password and not re.fullmatch(r"[!-~]+", password):
        raise BadSettings(f"{setting} has a token that no header can carry")
    return {"Authorization": f"Bearer {password}"} if password else {}
