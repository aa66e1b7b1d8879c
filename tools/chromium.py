"""Drives headless Chromium over two pipes, by its DevTools protocol. Standard library only."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time

from rig import Missing

PATIENCE_S = 30
FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars"


def program():
    named = os.environ.get("CHROMIUM")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = named or next(filter(None, map(shutil.which, names)), None)
    if not found or not shutil.which(found):
        raise Missing("no Chromium: apt-get install --no-install-recommends chromium, or set CHROMIUM")
    return found


class Browser(contextlib.AbstractContextManager):
    """One Chromium with one page."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()
        # Out of the way of 3 and 4, which Chromium reads and writes.
        to_read, to_write = (fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_read, to_write))

        def place():
            os.dup2(to_read, 3)
            os.dup2(to_write, 4)

        argv = [program(), *FLAGS.split(), "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.child = subprocess.Popen(argv, preexec_fn=place, pass_fds=(3, 4), **quiet)
        os.close(to_read)
        os.close(to_write)
        os.set_blocking(self.read_end, False)
        self.unread, self.number, self.session = b"", 0, None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.profile.cleanup()

    def call(self, method, **params):
        self.number += 1
        number = self.number
        asked = {"id": number, "method": method, "params": params}
        if self.session:
            asked["sessionId"] = self.session
        os.write(self.write_end, json.dumps(asked).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for told in self.pump(0.01):
                if told.get("id") == number:
                    if "error" in told:
                        raise SystemExit(f"{method}: {told['error']}")
                    return told["result"]
        raise SystemExit(f"Chromium did not answer {method}")

    def pump(self, seconds):
        """Reads what has come; answers are returned, events are kept."""
        try:
            data = os.read(self.read_end, 1 << 20)
        except BlockingIOError:
            data = b""
            time.sleep(seconds)
        *whole, self.unread = (self.unread + data).split(b"\0")
        told = [json.loads(text) for text in whole]
        self.events += [one for one in told if "method" in one]
        return [one for one in told if "id" in one]

    def open(self, url):
        self.call("Page.navigate", url=url)

    def eval(self, script):
        """What a script says, promises included."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise SystemExit(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, script, seconds=PATIENCE_S):
        """True once a script says so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.eval(f"(() => {{ try {{ return Boolean({script}) }} catch {{ return false }} }})()"):
                return True
            time.sleep(0.05)
        return False

    def key(self, name, code):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def size(self, width, height, phone=False, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, whole=True):
        import base64

        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def faults(self):
        """Errors of scripts and of the policy; a call that fails is no fault of the page."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str([arg.get("value") for arg in params["args"]]))
            elif event["method"] == "Log.entryAdded":
                entry = params["entry"]
                if entry["level"] == "error" and entry["source"] != "network":
                    found.append(entry["text"])
        return found

    def urls(self):
        """All addresses that the page has asked for."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]
