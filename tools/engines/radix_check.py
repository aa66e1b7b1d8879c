"""SGLang's radix cache against the router's index: the same paths on every rank, and nothing else."""

import gzip
import os
import random
import signal
import subprocess

import rig
from engines.overlap import entries, follows, settle, wait_for
from engines.vllm_server import ports_in_a_row, post

PAGE_TOKENS = 16
RANKS = 2


class RadixServer:
    """radix_server.py in the engine's venv."""

    def __init__(self, started_by, buffer, tokens, *more):
        self.rig = started_by
        (self.port,) = rig.free_ports(1)
        self.events = ports_in_a_row(2 * RANKS)
        self.replay = self.events + RANKS
        self.url = f"http://127.0.0.1:{self.port}"
        self.flags = ["--buffer", str(buffer), "--tokens", str(tokens), *more]
        self.start(seed=1)

    def start(self, seed):
        venv = rig.needed_env("SGLANG_VENV", "a venv that can import sglang's radix cache, made by tools/engines/setup")
        root = rig.needed_env("SGLANG_ROOT", "the unpacked sglang wheel")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "radix_server.py")
        env = {"PYTHONPATH": root, "PYTHONWARNINGS": "ignore", "PATH": f"{venv}/bin:{os.environ['PATH']}"}
        ports = ["--port", str(self.port), "--events", str(self.events), "--replay", str(self.replay)]
        argv = [f"{venv}/bin/python", script, *ports, "--ranks", str(RANKS), "--page", str(PAGE_TOKENS), "--seed", str(seed), *self.flags]
        self.running = self.rig.start("radix-server", argv, env)
        self.running.wait_for("radix server /health", lambda: rig.get(f"{self.url}/health")[0] == 200)

    def kill(self):
        self.running.child.send_signal(signal.SIGKILL)
        self.running.child.wait()

    def work(self, requests):
        return post(f"{self.url}/work?requests={requests}", timeout=500)[0]

    def view(self):
        return rig.get(f"{self.url}/view", timeout=60)[1]


class Held:
    """The engine's own view: for every namespace the pages that each rank holds, by their path."""

    def __init__(self, view):
        self.paths = [set() for _ in range(RANKS)]
        self.ends = set()
        path = ()
        for line in view.splitlines():
            rank, before, salt, lora, words = line.split("\t")
            path = path[: int(before) * PAGE_TOKENS]
            tokens = tuple(int(word) for word in words.split())
            for start in range(0, len(tokens), PAGE_TOKENS):
                path += tokens[start : start + PAGE_TOKENS]
                self.paths[int(rank)].add((salt, lora, path))
            self.ends.add((salt, lora, path))
        every = set().union(*self.paths)
        self.entries = len(every) + len({(salt, lora) for salt, lora, _ in every})

    def pages(self, rank, salt, lora, tokens):
        count = 0
        while (salt, lora, tokens[: (count + 1) * PAGE_TOKENS]) in self.paths[rank] and (count + 1) * PAGE_TOKENS <= len(tokens):
            count += 1
        return count

    def questions(self, count_max):
        """Prompts of every kind: each end, some with one token changed. No adapters: requests name them as models."""
        draw = random.Random(5)
        ends = sorted(end for end in self.ends if not end[1])
        for salt, lora, path in draw.sample(ends, min(count_max, len(ends))):
            yield salt, lora, path + (1, 2, 3)
            changed = draw.randrange(len(path))
            yield salt, lora, path[:changed] + ((path[changed] + 1) % 64,) + path[changed + 1 :]


def compare(score, what, admin, server, exact=True, questions=400):
    """Asks the router about the engine's paths. Not exact: the router may know less, but nothing that is not so."""
    settle(admin)
    held = Held(server.view())
    wrong, asked, less = [], 0, 0
    for salt, lora, tokens in held.questions(questions):
        body = {"model": "tiny", "prompt": list(tokens), "max_tokens": 1, **({"cache_salt": salt} if salt else {})}
        answer, _ = post(f"{admin}/debug/overlap?endpoint=/v1/completions", body)
        for rank in answer["ranks"]:
            asked += 1
            truth, found = held.pages(rank["dp_rank"], salt, lora, tokens), rank["overlap_blocks"]
            less += found < truth
            if found > truth or (exact and found < truth):
                wrong.append((rank["dp_rank"], salt, len(tokens), f"held {truth}", f"index {found}"))
    score.check(f"{what}: {asked} overlaps asked, none wrong", asked > 0 and not wrong, wrong[:5] or (f"{less} known in part" if less else ""))
    if exact:
        have = entries(admin)
        score.check(f"{what}: the index has those paths and no other", have == held.entries, f"{have:.0f} entries, the engine {held.entries}")


def record(server, path):
    argv = [rig.binary(), "record", "--out", path]
    for rank in range(RANKS):
        argv += ["--from", f"tcp://127.0.0.1:{server.events + rank}"]
    running = server.rig.start("record", argv)
    running.wait_for("the recording", lambda: running.log_text().count("recording") >= RANKS)
    return running


def end_recording(recording, server, path):
    recording.child.send_signal(signal.SIGINT)
    recording.child.wait(30)
    with gzip.GzipFile(path.replace(".kvrec", ".view.gz"), "wb", mtime=0) as out:
        out.write(server.view().encode())


def replayed_exactly(folder):
    """The recording through the feed and the index, by the test that also keeps the captures of the tree."""
    argv = ["cargo", "test", "--quiet", "--test", "all", "--", "engine_captures"]
    done = subprocess.run(argv, cwd=rig.ROOT, env={**os.environ, "FOREBAY_CAPTURES": folder}, capture_output=True, text=True)
    return done.returncode == 0, done.stdout[-600:] if done.returncode else ""


def check(given, score):
    with rig.Rig() as started:
        server = RadixServer(started, buffer=4 * given.requests, tokens=given.pool_tokens)
        flags = ["--model-dir", os.path.join(rig.ROOT, "tests", "data", "tokenizer")]
        first = started.router([server.url], *flags)
        wait_for("events", lambda: follows(first.admin, RANKS))
        path = os.path.join(given.captures, "sglang-0.5.23-radix.kvrec")
        recording = record(server, path)
        settle(first.admin)
        server.work(given.requests // 2)
        compare(score, "sglang, half of the requests", first.admin, server)
        post(f"{server.url}/flush")
        counts = server.work(given.requests - given.requests // 2)
        print("sglang ranks:", counts)
        score.check("sglang: the trees evicted", all(rank["evictions"] > 20 for rank in counts), "")
        compare(score, f"sglang, {given.requests} requests", first.admin, server)
        end_recording(recording, server, path)
        good, why = replayed_exactly(given.captures)
        score.check("sglang: the recording gives the engine's view", good, why)

        second = started.router([server.url], *flags)
        wait_for("events", lambda: follows(second.admin, RANKS))
        compare(score, "sglang, a router that came late and had all replayed", second.admin, server)
        server.work(given.requests // 10)
        compare(score, "sglang, both go on: the first", first.admin, server, questions=100)
        compare(score, "sglang, both go on: the late one", second.admin, server, questions=100)

        server.kill()
        gone = wait_for("nothing is held of a dead engine", lambda: entries(first.admin) == 0)
        server.start(seed=2)
        back = wait_for("events of the next life", lambda: follows(first.admin, RANKS))
        server.work(200)
        print(f"sglang: kill -9 emptied the index after {gone:.2f} s; events followed {back:.2f} s after the restart")
        compare(score, "sglang, after kill -9 and a restart", first.admin, server, questions=100)
    with rig.Rig() as started:
        server = RadixServer(started, buffer=60, tokens=given.pool_tokens)
        server.work(min(600, given.requests))
        late = started.router([server.url], *flags)
        wait_for("events", lambda: follows(late.admin, RANKS))
        compare(score, "sglang, a history that was cut", late.admin, server, exact=False)
    for flag in ("--eagle", "--dynamo"):
        with rig.Rig() as started:
            server = RadixServer(started, 10_000, given.pool_tokens, flag)
            router = started.router([server.url], *flags)
            wait_for("events", lambda: follows(router.admin, RANKS))
            server.work(min(2_000, given.requests))
            compare(score, f"sglang {flag}", router.admin, server, questions=200)
