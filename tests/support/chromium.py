"""The Chromium of this machine, driven by Playwright without a screen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Skip the tests where there is no Chromium; fail them where one is promised (HALTUNE_NEEDS_BROWSER=1)."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        how = pytest.fail if os.environ.get("HALTUNE_NEEDS_BROWSER") == "1" else pytest.skip
        how("no Chromium here: install one (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()
