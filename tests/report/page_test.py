#!/usr/bin/env python3
"""Opens report pages in headless Chromium: what they show, what clicks do, that nothing is fetched.

    page_test.py --program build/release/bin/lowtide [--screenshots FOLDER]

Exits with 77 (skipped) where there is no Chromium or no Playwright:
    pip install playwright; apt-get install chromium
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/snapshots"
CHROMIUM = pathlib.Path("/usr/bin/chromium")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


try:
    from playwright.sync_api import sync_playwright
except ImportError:
    skip("Playwright is not installed")
if not CHROMIUM.exists():
    skip(f"there is no {CHROMIUM}")


def check(condition, what):
    if not condition:
        print(f"failed: {what}")
        sys.exit(1)


def rows(page, table):
    return page.eval_on_selector_all(f"#{table} tr", "all => all.map(r => [...r.cells].map(c => c.textContent))")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lowtide_page_"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        problems, requests = [], []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        page.on("request", lambda request: requests.append(request.url))

        def open_report(snapshot):
            out = folder / (pathlib.Path(snapshot).stem + ".html")
            subprocess.run([options.program, "report", snapshot, "-o", out], check=True, stdout=subprocess.DEVNULL)
            requests.clear()
            page.goto(out.as_uri())
            check(requests == [out.as_uri()], f"the page fetches {requests}")
            if options.screenshots:
                options.screenshots.mkdir(parents=True, exist_ok=True)
                page.screenshot(path=options.screenshots / (out.stem + ".png"), full_page=True)

        open_report(DATA / "step.pickle")
        check("Live after event 34" in page.inner_text("#liveTitle"), "the peak is not shown first")
        check("52.1 MiB in 12 blocks" in page.inner_text("#liveTitle"), "the peak's bytes differ")
        check(rows(page, "liveRows")[0][3] == "train.py:35:<module>", "the largest line differs")
        kinds = {row[3]: row[0] for row in rows(page, "kindRows")}
        check(kinds["optimizer state"] == "22.0 MiB", "the kinds differ")
        check("Out of memory at event 43" in page.inner_text("#notes"), "the failure is not told")
        check(len(rows(page, "whatIfRows")) == 7, "the what-ifs are missing")
        check(rows(page, "whatIfRows")[0][1] == "66.0 MiB", "the recorded peak differs")

        # A click on the time line says what is live there; keys move by one event.
        box = page.locator("#timeline").bounding_box()
        page.mouse.click(box["x"] + 72, box["y"] + 100)
        check("Live after event 0" in page.inner_text("#liveTitle"), "a click at the left is not event 0")
        check("0 B in 0 blocks" in page.inner_text("#liveTitle"), "something lives after a segment_alloc")
        page.locator("#timeline").focus()
        page.keyboard.press("ArrowRight")
        check("8.00 MiB in 1 blocks" in page.inner_text("#liveTitle"), "a key does not move by one event")
        # The wheel zooms about the pointer, a drag moves, the button goes back.
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
        page.mouse.wheel(0, -400)
        page.wait_for_function("view.last - view.first < 40")
        first = page.evaluate("view.first")
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2 + 200, box["y"] + 100, steps=4)
        page.mouse.up()
        check(page.evaluate("view.first") < first, "a drag to the right does not show earlier events")
        page.click("#zoomOut")
        check(page.evaluate("view.last - view.first") == 44, "the whole trace is not shown again")
        # Into a box of the flame view and back.
        page.click("#toPeak")
        flame = page.locator("#flame").bounding_box()
        page.locator("#flame").click(position={"x": 10, "y": 30})
        check("train.py" in page.inner_text("#flamePath"), "a click does not open a box")
        page.click("#flameUp")
        check("click a box" in page.inner_text("#flamePath"), "the flame view does not come back")
        check(flame["height"] >= 60, "the flame view is empty")
        page.locator("#map").hover(position={"x": 4, "y": 4})
        check("segment 0x7f50" in page.inner_text("#tip"), "a segment does not say what it is")

        open_report(DATA / "later.pickle")
        check(rows(page, "growthRows") == [["+5.86 KiB", "train.py:52:log"]], "the growing line differs")

        # A million events are drawn from columns, not from objects.
        large = folder / "large.pickle"
        subprocess.run(
            [sys.executable, DATA / "make_snapshots.py", "--large", "1000000", large], check=True
        )
        open_report(large)
        drawn = page.evaluate(
            """() => { const t = performance.now(); for (let i = 0; i < 20; i++) setView(i * now.n / 50, now.n - i * now.n / 50);
                       return (performance.now() - t) / 20; }"""
        )
        picked = page.evaluate(
            """() => { const t = performance.now(); for (let i = 0; i < 20; i++) select(Math.floor(i * now.n / 20));
                       return (performance.now() - t) / 20; }"""
        )
        print(f"a million events: {drawn:.1f} ms to draw a zoom, {picked:.1f} ms to say what is live at an event")
        check(page.evaluate("now.n") >= 1_000_000, "events are missing")
        check(not problems, f"the page complains: {problems}")
        browser.close()


if __name__ == "__main__":
    main()
