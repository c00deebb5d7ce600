"""The roles a process may have. Their names are those of `bongsu serve --role`."""

from __future__ import annotations

from enum import StrEnum

from bongsu.errors import BadCommand


class Role(StrEnum):
    API = "api"
    GATEWAY = "gateway"
    WORKER = "worker"
    CLOCK = "clock"


ALL_ROLES = frozenset(Role)
# Roles that answer HTTP. The others have no port to clash over, so any number of them fits on a machine.
LISTENING = frozenset({Role.API, Role.GATEWAY})
ALL_OR_SOME = f"all, or some of {', '.join(Role)}"


def read_roles(text: str) -> frozenset[Role]:
    """The roles of a comma separated list, or all of them."""
    if text == "all":
        return ALL_ROLES
    try:
        return frozenset(Role(part.strip()) for part in text.split(","))
    except ValueError:
        raise BadCommand(f"--role {text}: takes {ALL_OR_SOME}") from None
