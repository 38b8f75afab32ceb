"""Drives a headless Chromium over a pipe: for the tests of the pages and for the pictures of the manual."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "google-chrome", "chromium-browser")


def find():
    """The browser's path, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One browser with one page. `problems`: what the console or the network said since open()."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        to_read, self.write = os.pipe()
        self.read, to_write = os.pipe()

        def pipes():  # the browser reads commands from 3 and writes answers to 4
            os.dup2(to_read, 13)
            os.dup2(to_write, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        self.process = subprocess.Popen(
            [find(), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars",
             "--no-first-run", "--disable-background-networking", "--proxy-server=127.0.0.1:9",
             f"--user-data-dir={self.folder.name}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.number, self.session, self.problems, self.loaded = b"", 0, None, [], False
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        self.folder.cleanup()

    def receive(self, seconds=60):
        while b"\0" not in self.buffer:
            if not select.select([self.read], [], [], seconds)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.read, 1 << 20)
            if not data:
                raise EOFError("the browser ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(message)
        self.notice(message.get("method"), message.get("params", {}))
        return message

    def notice(self, method, params):
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append("exception: " + json.dumps(params["exceptionDetails"])[:600])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append("console: " + json.dumps(params["args"])[:600])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append("log: " + params["entry"]["text"][:600])
        elif method == "Network.requestWillBeSent" and params["request"]["url"] != self.url:
            self.problems.append("request: " + params["request"]["url"][:200])

    url = ""

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer.get("result", {})

    def open(self, path, width, dark=False, height=900, media=""):
        """Loads a file, for `media` ("print") if given; returns the seconds until its load event."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.url, self.problems, self.loaded = pathlib.Path(path).resolve().as_uri(), [], False
        begin = time.monotonic()
        self.send("Page.navigate", url=self.url)
        while not self.loaded:
            self.receive()
        return time.monotonic() - begin

    def evaluate(self, script):
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def pdf(self):
        """The page as printed, the bytes of a PDF."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=False)["data"])

    def mouse(self, kind, x, y, button="none"):
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=int(button != "none"))

    def key(self, key):
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path, selector="html"):
        """A PNG of the first element that matches."""
        box = self.evaluate(f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                            "return {x: b.left + scrollX, y: b.top + scrollY, width: b.width, height: b.height, scale: 1}; })()")
        shot = self.send("Page.captureScreenshot", format="png", clip=box, captureBeyondViewport=True)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))
