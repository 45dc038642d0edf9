#!/usr/bin/env python3
"""Opens report pages in headless Chromium: what they show, what clicks do, that nothing is fetched.

    page_test.py --program build/release/bin/lowtide [--large] [--screenshots FOLDER]

--large: a million events instead. Exits with 77 (skipped) where there is no Chromium (scripts/setup --browser
installs it), or with 1 when LOWTIDE_REQUIRE_BROWSER is set.
"""

import argparse
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

from browser import Browser, find_chromium

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/snapshots"


def check(condition, what):
    if not condition:
        print(f"failed: {what}")
        sys.exit(1)


def equal(got, wanted, what):
    check(got == wanted, f"{what}: {got!r}, not {wanted!r}")


class Reports:
    def __init__(self, options, folder, browser):
        self.options = options
        self.folder = folder
        self.browser = browser

    def open(self, snapshot):
        snapshot = pathlib.Path(snapshot)
        out = self.folder / (snapshot.stem + ".html")
        subprocess.run([self.options.program, "report", snapshot, "-o", out], check=True, stdout=subprocess.DEVNULL)
        page = self.browser.open(out.as_uri())
        equal(page.requests, [out.as_uri()], "the page fetches")
        return page

    def shot(self, page, name):
        if self.options.screenshots:
            self.options.screenshots.mkdir(parents=True, exist_ok=True)
            page.screenshot(self.options.screenshots / f"{name}.png")

    def close(self, page):
        equal(page.problems, [], "the page complains")
        equal(len(page.requests), 1, "files fetched")


def time_line(reports):
    page = reports.open(DATA / "step.pickle")
    reports.shot(page, "step")
    check("Live after event 34" in page.text("#liveTitle"), "the peak is not shown first")
    check("52.1 MiB in 12 blocks" in page.text("#liveTitle"), "the peak's bytes differ")
    equal(page.rows("liveRows")[0][3], "train.py:35:<module>", "the largest line")
    equal({row[3]: row[0] for row in page.rows("kindRows")}["optimizer state"], "22.0 MiB", "the kinds")
    check("Out of memory at event 43" in page.text("#notes"), "the failure is not told")
    check("33.0 MiB live in 66.0 MiB reserved" in page.text("#notes"), "what was live then is not told")
    equal(len(page.rows("whatIfRows")), 7, "what-ifs")
    equal(page.rows("whatIfRows")[0][1], "66.0 MiB", "the recorded peak")
    # Each pixel of the reserved line is what the segments' events add up to.
    equal(page.evaluate("[0, 5, 20, 42].map(e => now.reservedAfter(e))"), reserved(DATA / "step.pickle", [0, 5, 20, 42]), "reserved")

    # A click on the time line says what is live there; keys move by one event.
    left, top, width, _ = page.box("#timeline")
    page.click(left + 72, top + 100)
    check("Live after event 0" in page.text("#liveTitle"), "a click at the left is not event 0")
    check("0 B in 0 blocks" in page.text("#liveTitle"), "something lives after a segment_alloc")
    page.evaluate("document.getElementById('timeline').focus()")
    page.key("ArrowRight")
    check("8.00 MiB in 1 block" in page.text("#liveTitle"), "a key does not move by one event")
    # The wheel zooms about the pointer, a drag moves, the buttons go back and to the failure.
    left, top, width, _ = page.box("#timeline")
    page.move(left + width / 2, top + 100)
    page.wheel(left + width / 2, top + 100, -400)
    page.wait_for("view.last - view.first < 40")
    first = page.evaluate("view.first")
    page.press(left + width / 2, top + 100)
    for step in range(1, 5):
        page.move(left + width / 2 + 50 * step, top + 100, held=True)
    page.release(left + width / 2 + 200, top + 100)
    check(page.evaluate("view.first") < first, "a drag to the right does not show earlier events")
    page.click_on("#zoomOut")
    equal(page.evaluate("view.last - view.first"), 44, "the whole trace")
    page.click_on("#toFailure")
    check("Live after event 43" in page.text("#liveTitle"), "the failure is not gone to")

    # By time: the same events, where they were. They are 25 microseconds apart here.
    page.click_on("#zoomOut")
    page.click_on("#byTime")
    equal(page.evaluate("[view.first, view.last]"), [0, 43 * 25 + 1], "the whole time")
    equal(page.evaluate("[0, 24, 25, 26, 999999].map(axis.event)"), [0, 0, 1, 1, 43], "events by time")
    left, top, width, _ = page.box("#timeline")
    page.click(left + 70 + (width - 78) / 2, top + 100)
    check("Live after event 21, at 525 µs" in page.text("#liveTitle"), "a click in the middle of the time")
    page.click_on("#byEvent")
    equal(page.evaluate("view.last - view.first"), 44, "the whole trace again")

    # Into a box of the flame view and back; segments say what they are.
    page.click_on("#toPeak")
    check(page.box("#flame")[3] >= 60, "the flame view is empty")
    page.click_on("#flame", 10, 30)
    check("train.py" in page.text("#flamePath"), "a click does not open a box")
    page.click_on("#flameUp")
    check("click a box" in page.text("#flamePath"), "the flame view does not come back")
    left, top, _, _ = page.box("#map")
    page.move(left + 4, top + 4)
    check("segment 0x7f50" in page.text("#tip"), "a segment does not say what it is")
    reports.close(page)


def reserved(path, events):
    """Slowly, from the file: what is reserved after each event."""
    data = pickle.loads(path.read_bytes())
    trace = data["device_traces"][0]
    sign = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    changes = [sign.get(event["action"], 0) * event["size"] for event in trace]
    end = sum(segment["total_size"] for segment in data["segments"])
    return [end - sum(changes[event + 1 :]) for event in events]


def growth(reports):
    page = reports.open(DATA / "later.pickle")
    equal(page.rows("growthRows"), [["+5.86 KiB", "train.py:52:log"]], "the growing line")
    reports.close(page)


def what_ifs(reports):
    page = reports.open(DATA / "holes.pickle")
    reports.shot(page, "holes")
    check("Device 1" in page.text("#subtitle"), "the device is not named")
    equal(page.text("#whatIfCapacity"), "in the 210 MiB that there were", "the capacity")
    fits = {row[0]: row[3] for row in page.rows("whatIfRows")}
    equal(fits["as recorded"], "✗ fails", "as recorded")
    equal(fits["expandable_segments:True"], "✓ completes", "expandable segments")
    reports.close(page)


def devices(reports):
    """Two devices, of which the second has no trace; and one without times."""
    one = pickle.loads((DATA / "step.pickle").read_bytes())
    two = pickle.loads((DATA / "holes.pickle").read_bytes())
    for event in two["device_traces"][1]:
        del event["time_us"]
    made = {
        "segments": one["segments"] + two["segments"],
        "device_traces": [one["device_traces"][0], two["device_traces"][1], []],
    }
    made["segments"] += [dict(segment, device=2, address=segment["address"] + (1 << 44), blocks=[]) for segment in two["segments"]]
    for segment in made["segments"]:
        if segment["device"] == 2:
            block = {"address": segment["address"], "size": segment["total_size"], "requested_size": 7, "state": "active_allocated", "frames": []}
            segment["blocks"] = [block]
    path = reports.folder / "devices.pickle"
    path.write_bytes(pickle.dumps(made, protocol=4))
    page = reports.open(path)
    reports.shot(page, "devices")
    equal(page.evaluate("[...document.querySelectorAll('.device b')].map(b => b.textContent)"), ["device 0", "device 1", "device 2"], "devices")
    check("Device 0" in page.text("#subtitle"), "the first device is not shown first")
    page.click_on("#byTime")
    page.click_on(".device:nth-child(2)", 20, 10)
    check("Device 1" in page.text("#subtitle"), "a click does not show another device")
    check(page.evaluate("$('byTime').disabled && !byTime"), "times that are not there")
    check("140 MiB in 20 blocks" in page.text("#liveTitle"), "what is live there")
    page.click_on(".device:nth-child(3)", 20, 10)
    check("Live: 70 B in 10 blocks" in page.text("#liveTitle"), "a device without a trace")
    check("no trace was recorded" in page.text("#whatIfNote"), "what cannot be replayed is not said")
    page.click_on(".device:nth-child(1)", 20, 10)
    check("52.1 MiB in 12 blocks" in page.text("#liveTitle"), "the first device again")
    reports.close(page)


def million(reports):
    """A million events are drawn from columns, not from objects."""
    path = reports.folder / "large.pickle"
    subprocess.run([sys.executable, DATA / "make_snapshots.py", "--large", "1000000", path], check=True)
    page = reports.open(path)
    reports.shot(page, "large")
    check(page.evaluate("now.n") >= 1_000_000, "events are missing")

    def milliseconds(work):
        return page.evaluate(
            f"(() => {{ const t = performance.now(); for (let i = 0; i < 20; i++) {{ {work} }} return (performance.now() - t) / 20; }})()"
        )

    draw = milliseconds("setView(i * now.n / 50, now.n - i * now.n / 50);")
    pick = milliseconds("select(Math.floor(i * now.n / 20));")
    page.evaluate("setAxis(true)")
    by_time = milliseconds("setView(i * axis.end() / 50, axis.end() - i * axis.end() / 50);")
    load = page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
    print(
        f"a million events: {load:.0f} ms to open, {draw:.1f} ms to draw a zoom, {by_time:.1f} ms by time, "
        f"{pick:.1f} ms to say what is live at an event"
    )
    reports.close(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    if not find_chromium():
        print("there is no Chromium: scripts/setup --browser")
        sys.exit(1 if os.environ.get("LOWTIDE_REQUIRE_BROWSER") else 77)
    with tempfile.TemporaryDirectory(prefix="lowtide_page_") as folder, Browser() as browser:
        reports = Reports(options, pathlib.Path(folder), browser)
        if options.large:
            million(reports)
            return
        for test in (time_line, growth, what_ifs, devices):
            test(reports)
    with tempfile.TemporaryDirectory(prefix="lowtide_page_") as folder, Browser(dark=True) as browser:
        reports = Reports(options, pathlib.Path(folder), browser)
        page = reports.open(DATA / "step.pickle")
        reports.shot(page, "dark")
        check(page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 31)", "it is not dark")
        reports.close(page)


if __name__ == "__main__":
    main()
