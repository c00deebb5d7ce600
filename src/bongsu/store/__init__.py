"""The store: schema, migrations, one statement in one place; dialect differences in one file."""

from bongsu.store.engine import Store
from bongsu.store.migrate import check, migrate

__all__ = ["Store", "check", "migrate"]
