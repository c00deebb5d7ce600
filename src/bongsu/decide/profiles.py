"""The profiles of members (locale, time zone, quiet hours) that steps have seen, and what each means at a moment.

A step is given what follows from each profile instead of looking it up for each member: members are many, profiles few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bongsu.decide.quiet_hours import Quiet, active_times, local_day, quiet_until
from bongsu.runtime import telemetry
from bongsu.store.decisions import ActiveTime, Profile, ProfileRow

# Profiles that are remembered. Members with another profile cost their step a second attempt.
MOST = 256

_log = telemetry.log("bongsu.decide")


class Profiles:
    def __init__(self, default_zone: ZoneInfo) -> None:
        self._default_zone = default_zone
        # Those seen last come last. The first is that of members who have set nothing.
        self._known = {Profile(): None}
        self.locales = [""]

    def remember(self, profiles: Sequence[Profile]) -> None:
        """All of these, which a step needs, however many they are; of the others those seen last."""
        for profile in profiles:
            self._known.pop(profile, None)
            self._known[profile] = None
        for profile in list(self._known)[: max(0, len(self._known) - max(MOST, len(profiles)))]:
            del self._known[profile]
        self.locales = sorted({profile.locale for profile in self._known})

    @property
    def known(self) -> list[Profile]:
        return list(self._known)

    def rows(self, profiles: Sequence[Profile], now: datetime, wait: timedelta = timedelta()) -> list[ProfileRow]:
        """What follows from each of them. What is due is so after that wait at the earliest."""
        return [self._row(profile, now, wait) for profile in profiles]

    def active_rows(self, profiles: Sequence[Profile], now: datetime, first: float, last: float) -> list[ActiveTime]:
        """When members with quiet hours may be sent to, as pacing needs it: within these seconds from their due time on."""
        found = []
        for timezone, start, end in {(profile.timezone, profile.quiet_start, profile.quiet_end) for profile in profiles}:
            if start >= 0:
                quiet, zone = Quiet(start, end), _zone(timezone) or self._default_zone
                times = active_times(quiet_until(now, zone, quiet) or now, zone, quiet, first, last)
                found += [ActiveTime(timezone, start, end, *map(_micros, active)) for active in times]
        return found

    def _row(self, profile: Profile, now: datetime, wait: timedelta) -> ProfileRow:
        zone = _zone(profile.timezone) or self._default_zone
        due, earliest = None, now + wait
        if profile.quiet_start >= 0:
            due = quiet_until(earliest, zone, Quiet(profile.quiet_start, profile.quiet_end))
        day = local_day(now, zone)
        return ProfileRow(profile.locale, profile.timezone, profile.quiet_start, profile.quiet_end, day, due or earliest)


def _micros(seconds: float) -> int:
    return round(seconds * 1e6) if math.isfinite(seconds) else 2**62


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo | None:
    """None when there is none, or none of that name on this machine; the default time zone is used then."""
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        _log.error("unknown time zone of a member, using the default", timezone=name)
        return None
