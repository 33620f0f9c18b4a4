"""The report's page in a headless browser: no error, a working viewer, no sideways scrolling."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nondet.report import write_report
from tests.factory import make_study

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium here: apt-get install chromium chromium-driver"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    settings = [
        {"batch_size": size, "dtype": dtype, "attention": "flash_attention_2_with_a_long_name"}
        for dtype in ("bf16", "fp32")
        for size in (1, 4)
    ]
    settings[1]["attention"] = "sdpa"
    make_study(folder, settings, items=8, diverge=[0, 1.0, 0, 0], name="a_study_" * 12, seed=2)
    return write_report([folder], folder / "report").page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def show(browser: Any, page: Path, width: int, scheme: str = "light") -> None:
    """Open the page from disk at a width in CSS pixels."""
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1200])
def test_no_console_message_and_no_sideways_scrolling(
    browser: Any, page: Path, width: int, scheme: str
) -> None:
    show(browser, page, width, scheme)
    assert browser.get_log("browser") == []
    root = "document.documentElement"
    assert browser.execute_script(f"return {root}.scrollWidth") <= width
    # Nothing that is not in a scrolling box of its own may stick out.
    outside = """
      const inside = (node) => node.closest(".scroll, .drawing, pre, .response, .skip");
      return [...document.body.querySelectorAll("*")].filter((node) => !inside(node)
        && node.getBoundingClientRect().right > arguments[0] + 1).map((node) => node.outerHTML);
    """
    assert browser.execute_script(outside, width) == []


def test_nothing_is_fetched(browser: Any, page: Path) -> None:
    show(browser, page, 1200)
    names = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    fetched = browser.execute_script(names)
    assert [name for name in fetched if not name.startswith("data:")] == []


def colour(browser: Any, selector: str, name: str) -> list[float]:
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    text = browser.execute_script(script, selector, name)
    return [float(part) for part in text[text.index("(") + 1 : -1].split(",")[:3]]


def luminance(rgb: list[float]) -> float:
    """Relative luminance as in WCAG 2."""
    parts = [value / 255 for value in rgb]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("selector", ["body", ".lead", "figcaption", "nav a", ".verdict h2"])
def test_text_stands_out(browser: Any, page: Path, scheme: str, selector: str) -> None:
    show(browser, page, 1200, scheme)
    text = luminance(colour(browser, selector, "color"))
    paper = luminance(colour(browser, "body", "backgroundColor"))
    assert (paper > 0.5) == (scheme == "light")
    contrast = (max(text, paper) + 0.05) / (min(text, paper) + 0.05)
    assert contrast >= 4.5


def test_drawings_follow_the_theme(browser: Any, page: Path) -> None:
    seen = []
    for scheme in ("light", "dark"):
        show(browser, page, 1200, scheme)
        seen.append(colour(browser, ".drawing text", "fill"))
    assert luminance(seen[0]) < 0.2 < luminance(seen[1])


def choose(browser: Any, select: str, index: int) -> None:
    script = """
      const select = document.getElementById(arguments[0]);
      select.value = arguments[1];
      select.dispatchEvent(new Event("change"));
    """
    browser.execute_script(script, select, str(index))


def said(browser: Any) -> str:
    return str(browser.find_element("id", "v-said").text)


def test_the_viewer_shows_the_fork(browser: Any, page: Path) -> None:
    show(browser, page, 1200)
    assert "part at token" in said(browser)
    marks = browser.find_elements("css selector", "#viewer mark")
    assert len(marks) == 2
    assert marks[0].text != marks[1].text
    assert len(browser.find_elements("css selector", "#viewer tr.chosen")) == 2
    rows = browser.find_elements("css selector", "#v-a tbody tr")
    assert len(rows) == 5
    choose(browser, "v-right", 0)  # a run against itself
    assert "are the same" in said(browser)
    assert browser.find_elements("css selector", "#viewer mark") == []


def test_the_viewer_goes_through_the_items_with_the_keyboard(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, page, 1200)
    item = browser.find_element("id", "v-item")
    count = len(item.find_elements("tag name", "option"))
    assert count == 8
    following = browser.find_element("id", "v-next")
    browser.execute_script("document.getElementById('v-item').focus()")
    active = browser.switch_to.active_element
    active.send_keys(Keys.TAB, Keys.TAB)
    assert browser.switch_to.active_element == following or (
        browser.switch_to.active_element.get_attribute("id") in ("v-back", "v-next")
    )
    texts = []
    for _ in range(count):
        texts.append(item.get_property("value"))
        following.send_keys(Keys.ENTER)
    assert texts == [str(place) for place in range(count)]
    assert item.get_property("value") == "0"
    browser.find_element("id", "v-back").send_keys(Keys.SPACE)
    assert item.get_property("value") == str(count - 1)


def test_focus_can_be_seen(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, page, 1200)
    browser.find_element("tag name", "body").send_keys(Keys.TAB)
    active = browser.switch_to.active_element
    assert active.get_attribute("class") == "skip"
    assert active.location["x"] >= 0
    active.send_keys(Keys.TAB)
    script = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.execute_script(script) == "solid"


def test_a_page_without_scripts_still_has_its_numbers(browser: Any, page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, page, 380)
        assert "DIFFERENT" in browser.find_element("id", "verdict").text
        assert "needs JavaScript" in browser.find_element("id", "viewer").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
