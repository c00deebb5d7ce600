"""Erase a member: a run of the job `erase`, which any clock finishes if its process dies.

Until it is finished the run has the member's id, without which it could not be continued. The step that deletes the member
replaces it with its hash: whether an id was erased can be answered, whose it was cannot be read off.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any

from bongsu.chat.fanout import Fanout
from bongsu.clock.run import Run, Step
from bongsu.clock.runs import Runs
from bongsu.desk.digest_texts import rewrite_with
from bongsu.live.announce import announce_changes
from bongsu.model import new_id
from bongsu.model.job import Job
from bongsu.render.templates import Templates
from bongsu.runtime.signals import Signals
from bongsu.store import Store
from bongsu.store.members import erasure
from bongsu.store.members.erased_actors import forget_actor
from bongsu.store.runs import RunRow, replace_input

# Rows of each table that one transaction deletes: the member's own calls wait for so long.
BATCH = 500
# A part that found only notifications whose deliveries are being recorded looks again after this.
AGAIN_SECONDS = 0.05
# A member with millions of notifications takes minutes. Counted from the request: a service that was down for days still
# finishes it: no other process will.
AT_MOST = timedelta(days=365)


def erase_job(signals: Signals, batch: int = BATCH) -> Job:
    """For those who request erasures, and for clocks, which go on with those of dead processes."""
    return Job("erase", "Erases all data of a member.", partial(_erase, signals, batch), at_most_for=AT_MOST)


class Erasures:
    def __init__(self, store: Store, signals: Signals, lease_seconds: float, batch: int = BATCH) -> None:
        self._runs = Runs(store, lease_seconds)
        self._job = erase_job(signals, batch)

    async def erase(self, member_id: str, requested_by: str) -> RunRow:
        """Erase a member, known or not. Returns when it is done. Several may be under way for one member."""
        ended = await self._runs.run_by_hand(self._job, requested_by, input={"memberId": member_id}, subject=str(new_id()))
        if ended.raised is not None:
            raise ended.raised
        return ended.run


async def _forget_id(step: Step, run: Run) -> None:
    """In this run's own input, and in those of replays and failed erasures that were about the member: the hash instead."""
    member_id: str = run.input["memberId"]
    for run_id, requested in [(run.run_id, run.input), *(await erasure.find_inputs(step, member_id)).items()]:
        await replace_input(step, run_id, _without_id(requested, member_id))


def _without_id(requested: Any, member_id: str) -> Any:
    match requested:
        case dict():
            return {
                f"{name.removesuffix('Id')}Sha256" if value == member_id else name: _without_id(value, member_id)
                for name, value in requested.items()
            }
        case str() if requested == member_id:
            return member_hash(member_id)
    return requested


def member_hash(member_id: str) -> str:
    return sha256(member_id.encode()).hexdigest()


async def _erase(signals: Signals, batch: int, run: Run) -> str:
    """The cursor has the messages that the last part leaves to be deleted if no other member has them; `True` at the end."""
    fanout, rewrite = Fanout(signals), rewrite_with(Templates.load())
    while run.cursor is not True:
        member_id: str = run.input["memberId"]
        if run.cursor is not None:
            async with run.step() as step:
                step.save(cursor=None, counts=await erasure.forget_messages(step, run.cursor))
            continue
        async with run.step() as step:
            forgotten = await forget_actor(step, member_id, batch, rewrite)
            step.save(counts={"digest entries": forgotten.entries})
        announce_changes(signals, forgotten.updated)
        async with run.step() as step:
            part = await erasure.erase_part(step, member_id, batch)
            step.save(cursor=part.is_last or part.message_ids or None, counts=part.counts)
            if part.is_last:
                await _forget_id(step, run)
        for room_id in part.left_rooms:
            fanout.left(room_id, member_id)
        for room_id in part.changed_rooms:
            fanout.changed(room_id)
        if not part.is_last and not part.counts.total() and not forgotten.entries:
            await asyncio.sleep(AGAIN_SECONDS)
    return ", ".join(f"{count} {name}" for name, count in run.counts.items() if count) or "nothing was stored"
