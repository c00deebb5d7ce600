"""Fixtures: one browser and one running Bongsu for a module's tests, each with members of its own."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from playwright.sync_api import Browser

from bongsu.settings import Settings
from tests.conftest import KEYS
from tests.support.debian import PackageMissing
from tests.support.processes import serving
from tests.web.chromium import browsing
from tests.web.harness import Elsewhere, Site, elsewhere, embedded, site_of


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        with browsing() as running:
            yield running
    except PackageMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def partner() -> Iterator[Elsewhere]:
    """A site whose origins Bongsu is given."""
    with elsewhere() as place:
        yield place


@pytest.fixture(scope="module")
def whole_site(browser: Browser, partner: Elsewhere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    origins = f"{partner.same_site},{partner.other_site}"
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"), cors_origins=origins, **KEYS)
    with serving(embedded(settings)) as served, site_of(browser, served) as site:
        yield site


@pytest.fixture
def site(whole_site: Site) -> Iterator[Site]:
    yield whole_site
    whole_site.leave()


@pytest.fixture
def member() -> str:
    return f"m-{uuid4()}"
