"""Drives headless Chromium through the DevTools protocol, over a pipe: needs nothing but Chromium.

    with Browser() as browser:
        page = browser.open("file:///tmp/report.html")
        page.evaluate("document.title")
        page.click(100, 200)
        page.screenshot("report.png")
        page.problems, page.requests         # what it complained of, what it fetched

https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find_chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    def __init__(self, width=1300, height=1000, dark=False):
        self.profile = tempfile.mkdtemp(prefix="lowtide_chromium_")
        to_browser, self.out = os.pipe()
        self.read_end, from_browser = os.pipe()
        words = [
            find_chromium(),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={self.profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        # The protocol's pipes are the descriptors 3 and 4.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["sh", "-c", shell, "sh", *words],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.size = (width, height)
        self.dark = dark
        self.last_id = 0
        self.buffer = b""
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.send("Browser.close")
            self.process.wait(10)
        except Exception:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.read_end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, seconds):
        """The next message, or None."""
        end = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_end], [], [], max(0, end - time.monotonic()))
            got = os.read(self.read_end, 1 << 20) if ready else b""
            if not got:
                return None
            self.buffer += got
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def send(self, method, session=None, seconds=120, **parameters):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data) :]
        end = time.monotonic() + seconds
        while True:
            reply = self.receive(end - time.monotonic())
            if reply is None:
                raise RuntimeError(f"Chromium did not answer {method}")
            if reply.get("id") == self.last_id:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                return reply["result"]
            self.events.append(reply)

    def open(self, url):
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, url)


class Page:
    def __init__(self, browser, session, url):
        self.browser = browser
        self.session = session
        self.seen = 0
        width, height = browser.size
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if browser.dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def send(self, method, **parameters):
        return self.browser.send(method, session=self.session, **parameters)

    def mine(self, method):
        return [e["params"] for e in self.browser.events if e.get("sessionId") == self.session and e["method"] == method]

    @property
    def requests(self):
        self.evaluate("0")
        return [event["request"]["url"] for event in self.mine("Network.requestWillBeSent")]

    @property
    def problems(self):
        self.evaluate("0")
        found = [event["exceptionDetails"]["text"] for event in self.mine("Runtime.exceptionThrown")]
        found += [str(event["args"]) for event in self.mine("Runtime.consoleAPICalled")]
        found += [event["entry"]["text"] for event in self.mine("Log.entryAdded")]
        return found

    def evaluate(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def wait_for(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise RuntimeError(f"never true: {expression}")
            time.sleep(0.02)

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def rows(self, table):
        return self.evaluate(
            f"[...document.querySelectorAll('#{table} tr')].map(r => [...r.cells].map(c => c.textContent))"
        )

    def box(self, selector):
        """x, y, width and height inside the window, scrolled into view."""
        return self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
        )

    def mouse(self, kind, x, y, **more):
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move(self, x, y, held=False):
        self.mouse("mouseMoved", x, y, buttons=1 if held else 0, button="left" if held else "none")

    def press(self, x, y):
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)

    def release(self, x, y):
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def click(self, x, y):
        self.move(x, y)
        self.press(x, y)
        self.release(x, y)

    def click_on(self, selector, x=None, y=None):
        left, top, width, height = self.box(selector)
        self.click(left + (width / 2 if x is None else x), top + (height / 2 if y is None else y))

    def wheel(self, x, y, delta):
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta)

    def key(self, name):
        self.send("Input.dispatchKeyEvent", type="keyDown", key=name, code=name)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=name, code=name)

    def screenshot(self, path, whole=True):
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path = os.fspath(path)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
