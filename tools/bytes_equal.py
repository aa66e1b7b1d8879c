#!/usr/bin/env python3
"""Random exchanges through the router and straight to the worker must deliver the same bytes, both ways.

A scripted worker (asyncio, below) answers each request as its `x-case` field says: Content-Length, chunked,
SSE or close-delimited bodies, cut at random points. Each case runs once direct and once through the router:
the worker must have received the same body, the client the same status, end-to-end fields and body.
Clients cut their requests at random points too, some read slowly, most keep their connection.

usage: tools/bytes_equal.py [--cases 1000] [--seed N] [--wrap PROGRAM]
env:   FOREBAY   program under test, default target/dist/forebay
"""

import argparse
import asyncio
import hashlib
import json
import random
import sys

from rig import Rig, Score, free_ports

PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/generate"]
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade"}


def cut(rng, data, pieces_max):
    """`data` in up to `pieces_max` pieces at random points."""
    count = min(rng.randint(0, pieces_max - 1), max(0, len(data) - 1))
    points = sorted(rng.sample(range(1, len(data)), count)) if count else []
    return [data[a:b] for a, b in zip([0, *points], [*points, len(data)])]


def text(rng, length):
    return "".join(rng.choice("abc \n\t\"\\/{}[]:,é漢😀0189") for _ in range(length))


def request_body(rng):
    """A valid body with odd spacing, unknown fields and escapes: it must arrive as it is."""
    size = rng.choice([0, 3, 40, 400, 4_000, 40_000, 150_000])
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": text(rng, size)}, {"role": "user", "content": "x"}],
        "prompt": text(rng, rng.randint(0, 50)),
        "input": "x",
        f"unknown_{rng.randint(0, 9)}": [None, True, -0.0, 1e300, {"a": {}}, text(rng, 5)],
        "stream": rng.random() < 0.5,
    }
    order = list(body.items())
    rng.shuffle(order)
    spaced = json.dumps(dict(order), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, 1, "\t"]))
    return (rng.choice(["", " ", "\r\n"]) + spaced + rng.choice(["", "\n"])).encode()


def response_body(rng, kind):
    if kind == "sse":
        events = [f"data: {json.dumps({'i': n, 't': text(rng, rng.randint(0, 60))})}\n\n" for n in range(rng.randint(0, 80))]
        return ("".join(events) + "data: [DONE]\n\n").encode()
    return rng.randbytes(rng.choice([0, 1, 2, 100, 5_000, 16_384, 70_000, 600_000]))


class Case:
    """Everything about one exchange, drawn from its number and the seed, so that any case can be run again."""

    def __init__(self, seed, number):
        rng = random.Random(f"{seed}/{number}")
        self.number = number
        self.path = rng.choice(PATHS)
        self.sent = request_body(rng)
        self.sent_chunked = rng.random() < 0.3
        self.kind = rng.choice(["length", "length", "chunked", "chunked", "sse", "sse", "close"])
        self.status = rng.choice([200, 200, 200, 200, 201, 400, 404, 422, 500])
        self.answer = response_body(rng, self.kind)
        self.read_slowly = rng.random() < 0.03
        self.fresh_connection = rng.random() < 0.1
        self.seed = f"{seed}/{number}/cuts"

    def request_pieces(self, authority):
        rng = random.Random(self.seed)
        framing, body = f"Content-Length: {len(self.sent)}", self.sent
        if self.sent_chunked:
            framing, body = "Transfer-Encoding: chunked", chunked(rng, self.sent)
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n"
            f"x-case: {self.number}\r\nX-Odd:  spaced value \r\nAccept: */*\r\n{framing}\r\n\r\n"
        )
        return cut(rng, head.encode() + body, 8)

    def response_pieces(self):
        rng = random.Random(self.seed + "/answer")
        media = "text/event-stream" if self.kind == "sse" else "application/octet-stream"
        framing, body = f"Content-Length: {len(self.answer)}\r\n", self.answer
        if self.kind in ("chunked", "sse"):
            framing, body = "Transfer-Encoding: chunked\r\n", chunked(rng, self.answer)
        elif self.kind == "close":
            framing = "Connection: close\r\n"
        head = f"HTTP/1.1 {self.status} Scripted\r\nContent-Type: {media}\r\nX-Answer: {self.number}\r\nX-Answer: again\r\n{framing}\r\n"
        return cut(rng, head.encode() + body, 12)


def chunked(rng, data):
    parts = [piece for piece in cut(rng, data, 10) if piece]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in parts)
    return framed + b"0\r\n\r\n"


async def read_head(reader):
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:] if line)]
    return lines[0], fields


async def read_body(reader, fields, until_close, pause=0.0):
    have = dict(fields)
    if "chunked" in have.get("transfer-encoding", ""):
        parts = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
            await asyncio.sleep(pause)
        await reader.readuntil(b"\r\n")
        return b"".join(parts)
    if "content-length" in have:
        left, parts = int(have["content-length"]), []
        while left:
            piece = await reader.read(min(left, 32_768))
            if not piece:
                raise asyncio.IncompleteReadError(b"".join(parts), left)
            parts.append(piece)
            left -= len(piece)
            await asyncio.sleep(pause)
        return b"".join(parts)
    return await reader.read() if until_close else b""


class Worker:
    """Plays the scripted answers and keeps what it received, by case."""

    def __init__(self, cases):
        self.cases = cases
        self.received = {}

    async def serve(self, reader, writer):
        try:
            while True:
                line, fields = await read_head(reader)
                body = await read_body(reader, fields, False)
                number = int(dict(fields).get("x-case", -1))
                if number < 0:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    continue
                case = self.cases[number]
                self.received.setdefault(number, []).append((line, end_to_end(fields), body))
                for piece in case.response_pieces():
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if case.kind == "close":
                    return
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # The peer left, or the proof ended.
        finally:
            writer.close()


def end_to_end(fields):
    """Fields that must survive a proxy, without those that each hop owns and those that the router adds."""
    dropped = HOP_BY_HOP | {"host", "date", "via", "x-request-id", "x-forwarded-for", "x-forwarded-proto", "forwarded"}
    return sorted((name, value) for name, value in fields if name not in dropped and not name.startswith("x-forebay-"))


class Client:
    """One keep-alive connection at a time to one address."""

    def __init__(self, port):
        self.port = port
        self.streams = None

    async def exchange(self, case):
        if self.streams is None or case.fresh_connection:
            self.close()
            limit = 4_096 if case.read_slowly else 65_536
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        reader, writer = self.streams
        for piece in case.request_pieces(f"127.0.0.1:{self.port}"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        line, fields = await read_head(reader)
        body = await read_body(reader, fields, True, 0.01 if case.read_slowly else 0.0)
        have = dict(fields)
        framed = "content-length" in have or "chunked" in have.get("transfer-encoding", "")
        if have.get("connection", "").lower() == "close" or not framed:
            self.close()
        return line.split(" ")[1], end_to_end(fields), body

    def close(self):
        if self.streams:
            self.streams[1].close()
        self.streams = None


def differences(case, direct, routed, received):
    """What differs between the two runs of a case, in words."""
    found = []
    if len(received) != 2:
        return [f"the worker saw {len(received)} requests, 2 expected"]
    (line_a, fields_a, body_a), (line_b, fields_b, body_b) = received
    if line_a != line_b:
        found.append(f"request line {line_b!r}, sent {line_a!r}")
    if case.path == "/v1/responses":
        # The router reads the id of a stored response, and asks for an answer that it can read.
        fields_b = [field for field in fields_b if field != ("accept-encoding", "identity")]
    if fields_a != fields_b:
        found.append(f"request fields {set(fields_a) ^ set(fields_b)}")
    if body_a != case.sent or body_b != case.sent:
        found.append(f"request body {digest(body_b)}, sent {digest(case.sent)}")
    for name, a, b in zip(("status", "response fields", "response body"), direct, routed):
        if a != b:
            found.append(f"{name}: {digest(b) if isinstance(b, bytes) else b}, direct {digest(a) if isinstance(a, bytes) else a}")
    if direct[2] != case.answer:
        found.append("the direct answer itself is not the scripted one: a fault of this proof")
    return found


def digest(data):
    return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:8]}"


async def lane(numbers, cases, worker, ports, failures):
    """One client pair working through its share of the cases."""
    direct, routed = (Client(port) for port in ports)
    for number in numbers:
        case = cases[number]
        try:
            a = await asyncio.wait_for(direct.exchange(case), 30)
            b = await asyncio.wait_for(routed.exchange(case), 30)
            wrong = differences(case, a, b, worker.received.get(number, []))
        except (OSError, ValueError, EOFError, asyncio.TimeoutError) as error:
            wrong = [f"{type(error).__name__}: {error}"]
            direct.close()
            routed.close()
        if wrong:
            what = f"{case.path} sent {len(case.sent)} {'chunked' if case.sent_chunked else 'length'}, answer {case.status} {case.kind} {len(case.answer)}"
            failures.append(f"case {number} ({what}): {'; '.join(wrong)}")
        worker.received.pop(number, None)
    direct.close()
    routed.close()


async def run(given, worker_port, router_port):
    cases = [Case(given.seed, number) for number in range(given.cases)]
    worker = Worker(cases)
    failures = []
    server = await asyncio.start_server(worker.serve, "127.0.0.1", worker_port)
    async with server:
        router = await asyncio.to_thread(given.start_router, worker_port)
        ports = (worker_port, router.port)
        await asyncio.gather(*(lane(range(n, given.cases, 8), cases, worker, ports, failures) for n in range(8)))
    return failures


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", type=int, default=1_000)
    options.add_argument("--seed", default=str(random.randrange(1 << 32)), help="run a reported case again")
    options.add_argument("--wrap", default="", help="program that starts the router, e.g. tools/without_io_uring.py")
    given = options.parse_args()
    score = Score()
    with Rig() as rig:
        (worker_port,) = free_ports(1)

        def start_router(port):
            return rig.router(
                [f"http://127.0.0.1:{port}"], "--engine", "openai", "--health", "off", "--policy", "round_robin",
                wrap=given.wrap.split(), ready=False,
            )  # fmt: skip

        given.start_router = start_router
        failures = asyncio.run(run(given, worker_port, 0))
    for failure in failures[:20]:
        print(failure)
    score.check(f"{given.cases} exchanges equal to direct (seed {given.seed})", not failures, f"{len(failures)} differ" if failures else "")
    return score.finish()


if __name__ == "__main__":
    sys.exit(main())
