"""Imported by the process that services are forked from (processes.py), so that none of them does it again: what a service
imports only when it runs, and the templates, compiled."""

import gc

import pydantic.v1
import sqlalchemy.dialects.sqlite
import uvicorn.lifespan.off
import uvicorn.loops.uvloop
import uvicorn.protocols.http.httptools_impl
import uvicorn.protocols.websockets.websockets_sansio_impl

import bongsu.demo
import bongsu.store.schema.upgrade
from bongsu.render.templates import Templates

Templates.load()
# A collection in a forked process looks at none of this: it would copy all of the memory that it shares with its parent.
gc.collect()
gc.freeze()

__all__ = ["bongsu", "pydantic", "sqlalchemy", "uvicorn"]
