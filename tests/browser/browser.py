"""Chromium, headless, for the tests of the page and for its pictures."""

from __future__ import annotations

import shutil
import time
import unittest
from collections.abc import Callable
from typing import Any

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
except ImportError as error:
    raise unittest.SkipTest("selenium is missing: deploy/setup installs it into its Python") from error

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    raise unittest.SkipTest("chromium or chromedriver is missing: install the packages chromium and chromium-driver")

HOSTILE = "<img src=x onerror=alert(1)>"
WAIT_SECONDS = 15.0


def open_browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1360,900"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


class BrowserTest(unittest.TestCase):
    """A browser for all tests of a class, and how they look at the page in it."""

    browser: webdriver.Chrome

    @classmethod
    def setUpClass(cls) -> None:
        cls.browser = open_browser()
        cls.addClassCleanup(cls.browser.quit)

    def setUp(self) -> None:
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.screen(1360, 900)

    def screen(self, width: int, height: int) -> None:
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})

    def js(self, code: str, *arguments: Any) -> Any:
        return self.browser.execute_script(code, *arguments)

    def text(self, name: str) -> str:
        return self.js("return document.getElementById(arguments[0]).textContent", name)

    def painted_at(self) -> float | None:
        """Milliseconds since the page was asked for."""
        return self.js("return performance.getEntriesByName('hedgerow-painted')[0]?.startTime ?? null")

    def heat(self) -> str:
        return self.js("return document.getElementById('heat').toDataURL()")

    def until(self, holds: Callable[[], Any], seconds: float = WAIT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            self.assertLess(time.monotonic(), deadline, f"not within {seconds} s; connection: {self.text('connection')}")
            time.sleep(0.05)

    def errors(self) -> list[str]:
        """Of the browser's console, those of refused and lost connections apart, since the last call."""
        return [entry["message"] for entry in self.browser.get_log("browser") if "/api/" not in entry["message"]]

    def requests(self) -> list[str]:
        """What the page has asked for beside itself."""
        return self.js("""return performance.getEntriesByType('resource').map((entry) => entry.name)
            .filter((name) => !name.startsWith('data:'))""")

    def collect_connections(self) -> None:
        """From here on window.said holds each thing that the page says of its connection."""
        self.js("""window.said = []; const place = document.getElementById('connection');
            new MutationObserver(() => window.said.push(place.textContent))
                .observe(place, {childList: true, characterData: true, subtree: true});""")
