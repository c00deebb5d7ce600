"""How a transaction begins and ends on each of the two databases: with as few words to the server as there can be."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store.postgres import POSTGRES
from bongsu.store.sqlite import SQLITE


@contextlib.asynccontextmanager
async def on_postgres(connection: AsyncConnection, first: Sequence[str]) -> AsyncIterator[None]:
    driver = POSTGRES.driver(connection)
    try:
        await driver.execute("; ".join(("BEGIN", *first)))
        yield
        # It answers ROLLBACK when a statement has failed and whoever sent it went on as if it had not.
        if await driver.execute("COMMIT") != "COMMIT":
            raise AssertionError("a transaction was to be committed in which a statement had failed")
    except BaseException:
        await _roll_back(driver)
        raise


async def _roll_back(driver: asyncpg.Connection) -> None:
    """Or hang up, which does the same: nobody is given a connection with a transaction open."""
    # Asked for or not: a BEGIN that was not waited for to its end may have been heard.
    if driver.is_closed():
        return
    try:
        await driver.execute("ROLLBACK")
    except BaseException as error:
        driver.terminate()
        if not isinstance(error, Exception):
            raise


@contextlib.asynccontextmanager
async def on_sqlite(connection: AsyncConnection, first: Sequence[str]) -> AsyncIterator[None]:
    driver = SQLITE.driver(connection)
    try:
        await SQLITE.run_all(connection, [(one, ()) for one in ("BEGIN IMMEDIATE", *first)])
        yield
        await SQLITE.run(connection, "COMMIT")
    except BaseException:
        # In its thread it comes after whatever was under way there, and does nothing when nothing was begun.
        await driver.rollback()
        raise
