"""The jobs that are built in, one file each."""

from __future__ import annotations

from functools import partial

from bongsu.clock.jobs.recommend import Recommend
from bongsu.clock.jobs.recover import Recovery
from bongsu.clock.jobs.retain import retain_job
from bongsu.clock.jobs.stale_tokens import stale_tokens_job
from bongsu.clock.jobs.sweep import sweep_job
from bongsu.clock.recommenders.embedded import OpenEmbedded
from bongsu.clock.recommenders.http import OpenHttp
from bongsu.deliver.leases import continuity_of
from bongsu.model.job import Job
from bongsu.runtime.signals import Signals
from bongsu.settings import Settings
from bongsu.store import Store


def built_in_jobs(settings: Settings, store: Store, signals: Signals) -> tuple[Job, ...]:
    """Call it once per process: the clock schedules them, requests list and run them."""
    recovery = Recovery(store, signals, new_continuity=partial(continuity_of, settings))
    recommender = OpenHttp(settings) if settings.recommendation_url else OpenEmbedded(store, settings.recommendation_limit)
    recommend = Recommend(store, signals, settings, recommender)
    return (
        recovery.job(settings.recovery_cron),
        recommend.job(settings.recommendation_cron, is_enabled=settings.recommendation_enabled),
        retain_job(settings),
        sweep_job(recovery),
        stale_tokens_job(settings),
    )
