"""Channels in SQL, from the channel table: a set of channels is a number, one bit for each."""

from __future__ import annotations

from bongsu.model.channels import BUILT_IN, FIRST_OWN_BIT, Address

_BY_COLUMN = [spec for spec in BUILT_IN if spec.address in (Address.EMAIL, Address.PHONE)]

# Of the built-in channels. A channel of an app has its bit in bongsu_channels.
BITS = {spec.name: spec.bit for spec in BUILT_IN}
# Every bit that a channel has or may get.
ALL_BITS = 2**31 - 1
# The bits of apps' channels.
OWN_BITS = ALL_BITS - (FIRST_OWN_BIT - 1)
# The bits of channels that send to one address of the member.
SINGLE_ADDRESS_BITS = OWN_BITS + sum(spec.bit for spec in _BY_COLUMN)


def reachable(member: str) -> str:
    """The bits of the built-in channels on which a member can be reached; `member` is an alias of bongsu_members. The inbox
    always is there. Whether there are devices is looked up only for those who can be reached by nothing else."""
    always = sum(spec.bit for spec in BUILT_IN) - sum(spec.bit for spec in _BY_COLUMN)
    by_column = (f"CASE WHEN {member}.{spec.address} IS NULL THEN 0 ELSE {spec.bit} END" for spec in _BY_COLUMN)
    return " + ".join([str(always), *by_column])


def own_reachable(channels: str, member_id: str) -> str:
    """The bits of apps' channels for which a member has an address. Looked up only if the notice's channels name one."""
    return f"""CASE WHEN {channels} >= {FIRST_OWN_BIT} THEN (
                   SELECT coalesce(CAST(sum(own.bit) AS integer), 0)
                   FROM bongsu_addresses AS a JOIN bongsu_channels AS own ON own.name = a.channel
                   WHERE a.member_id = {member_id}) ELSE 0 END"""


# Names and bits of the channels that send to one address of the member.
SINGLE_ADDRESS_CHANNELS = " UNION ALL ".join(
    [f"SELECT '{spec.name}' AS name, {spec.bit} AS bit" for spec in _BY_COLUMN] + ["SELECT name, bit FROM bongsu_channels"]
)

# The address of a claimed delivery by its channel ($1), where it is a column of the member. Else `device` or `own` has it.
MEMBER_ADDRESS = "".join(f"WHEN '{spec.name}' THEN member.{spec.address} " for spec in _BY_COLUMN)
IS_OWN = "$1 NOT IN (" + ", ".join(f"'{spec.name}'" for spec in BUILT_IN) + ")"
IS_BY_COLUMN = "$1 IN (" + ", ".join(f"'{spec.name}'" for spec in _BY_COLUMN) + ")"
