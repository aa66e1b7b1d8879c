"""What the proofs in tools/ share: start the router and simulated engines on free ports, wait until they
are ready, read their metrics, stop them. Standard library only.

The program under test is $FOREBAY, else target/dist/forebay. Logs go to target/qa/.
"""

import contextlib
import http.client
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "target", "qa")
START_S_MAX = float(os.environ.get("FOREBAY_START_S_MAX", "20"))


class Missing(SystemExit):
    """Something this proof needs is not there; the text says what to do about it."""

    def __init__(self, text):
        super().__init__(f"{os.path.basename(sys.argv[0])}: {text}")


def binary():
    path = os.environ.get("FOREBAY") or os.path.join(ROOT, "target", "dist", "forebay")
    if not os.access(path, os.X_OK):
        raise Missing(f"{path} is missing: run `cargo build --profile dist`, or set FOREBAY")
    return path


def needed_env(name, what):
    value = os.environ.get(name)
    if not value:
        raise Missing(f"set {name}: {what}")
    if value.startswith("/") and not os.path.exists(value):
        raise Missing(f"{name}={value} does not exist: {what}")
    return value


PORTS_FIRST = int(os.environ.get("FOREBAY_TEST_PORT") or 21_500 + os.getpid() % 97 * 100)
ports_tried = itertools.count(PORTS_FIRST)


def free_ports(count):
    """Ports that were free a moment ago and that this process has not given out before; below the range
    that the kernel hands out by itself."""
    found = []
    for port in ports_tried:
        if len(found) == count:
            return found
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)


def get(url, timeout=2.0):
    """(status, body text) of a GET; status 0 when nothing answered."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException):
        return 0, ""


SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(url, name):
    """[(labels, value)] of one metric of a /metrics page."""
    found = []
    for line in get(url)[1].splitlines():
        match = SAMPLE.match(line)
        if match and match.group(1) == name:
            found.append((dict(LABEL.findall(match.group(2) or "")), float(match.group(3))))
    return found


def total(url, name, **labels):
    """Sum of the samples of a metric that carry these labels."""
    return sum(
        value
        for have, value in samples(url, name)
        if all(have.get(key) == want for key, want in labels.items())
    )


class Running:
    """A child process with its log file."""

    def __init__(self, name, argv, env=None):
        os.makedirs(LOGS, exist_ok=True)
        self.name = name
        self.log = os.path.join(LOGS, f"{name}-{os.getpid()}.log")
        self.argv = argv
        with open(self.log, "wb") as out:
            self.child = subprocess.Popen(
                argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}
            )

    def log_text(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def wait_for(self, what, ready):
        """Polls `ready()` until it is true; ends the program with the log's tail otherwise."""
        end = time.monotonic() + START_S_MAX
        while time.monotonic() < end:
            if self.child.poll() is not None:
                break
            if ready():
                return self
            time.sleep(0.02)
        code = self.child.poll()
        state = f"ended with status {code}" if code is not None else f"not ready after {START_S_MAX:.0f} s"
        tail = "\n".join(self.log_text().splitlines()[-20:])
        self.stop()
        raise SystemExit(f"{self.name}: {what}: {state}\n  {' '.join(self.argv)}\n{tail}")

    def rss_kib(self):
        with open(f"/proc/{self.child.pid}/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

    def open_files(self):
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    def stop(self, seconds_max=5.0):
        """Asks with SIGTERM, then insists. Returns the exit status."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(seconds_max)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        return self.child.returncode


class Rig(contextlib.AbstractContextManager):
    """Everything a proof started, stopped in reverse order at the end."""

    def __init__(self):
        self.started = []

    def __exit__(self, *_):
        for running in reversed(self.started):
            running.stop()

    def start(self, name, argv, env=None):
        running = Running(name, argv, env)
        self.started.append(running)
        return running

    def engine(self, *flags, name="engine"):
        """A simulated engine; returns it with `.url` set."""
        (port,) = free_ports(1)
        listen = f"127.0.0.1:{port}"
        running = self.start(f"{name}-{port}", [binary(), "engine", "--listen", listen, *flags])
        running.url = f"http://{listen}"
        return running.wait_for("engine /health", lambda: get(f"{running.url}/health")[0] == 200)

    def router(self, workers, *flags, wrap=(), ready=True, admin=None):
        """The router in front of `workers` (URLs); returns it with `.url`, `.admin` and `.port` set."""
        listen, free = free_ports(2)
        admin = admin or free
        argv = [*wrap, binary(), "serve", "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}"]
        for url in workers:
            argv += ["--worker", url]
        running = self.start(f"router-{listen}", [*argv, *flags])
        running.port = listen
        running.url = f"http://127.0.0.1:{listen}"
        running.admin = f"http://127.0.0.1:{admin}"
        path = "/readyz" if ready else "/healthz"
        return running.wait_for(path, lambda: get(running.admin + path)[0] == 200)


def nats_server():
    found = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/bin")
    if not found:
        raise Missing("no nats-server: apt-get install nats-server")
    return found


def certificate(folder, name="cert"):
    """A certificate for localhost that signs itself: FOLDER/NAME.pem, and FOLDER/NAME.key."""
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    cert, key = f"{folder}/{name}.pem", f"{folder}/{name}.key"
    made = subprocess.run([*words.split(), "-keyout", key, "-out", cert], capture_output=True, text=True, check=False)
    if made.returncode:
        raise Missing(f"openssl made no certificate: {made.stderr.strip()}")
    return cert, key


class Score:
    """Counts named checks and prints one line for each."""

    def __init__(self):
        self.failed = 0
        self.passed = 0

    def check(self, name, good, detail=""):
        self.passed += bool(good)
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}{'  ' + str(detail) if detail else ''}", flush=True)
        return good

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed else 0
