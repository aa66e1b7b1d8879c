"""What `tools/chaos` needs beside the programs: a wire between router and engine that can be broken, and clients that judge
each answer. One asyncio loop, standard library only.
"""

import asyncio
import collections
import contextlib
import json
import random
import re
import socket
import struct
import time

ANSWER_S_MAX = 60.0
TOKENS = 12
PROMPTS = [f"conversation {n % 8} " * 40 + f"question {n} of many " * 4 for n in range(64)]
NAMED = re.compile(rb"x-request-id: (q[0-9]+)\r\n", re.IGNORECASE)


def reset(writer):
    """Ends a connection without a word to either side."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Wire:
    """Passes bytes between a router and an engine, until it is told otherwise.

    `mode`: "whole"; "swallow" takes the router's bytes and gives nothing to the engine; "still" moves nothing either way.
    """

    def __init__(self, name, port, target, answered):
        self.name, self.port, self.target, self.answered = name, port, target, answered
        self.mode, self.open, self.moves = "whole", set(), asyncio.Event()
        self.moves.set()

    async def listen(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port, limit=1 << 20)

    def set(self, mode):
        self.mode = mode
        (self.moves.clear if mode == "still" else self.moves.set)()

    def reset_all(self):
        """All connections break now; those that come after are whole."""
        for writers in list(self.open):
            for writer in writers:
                reset(writer)

    async def serve(self, from_router, to_router):
        try:
            from_engine, to_engine = await asyncio.open_connection("127.0.0.1", self.target, limit=1 << 20)
        except OSError:
            return reset(to_router)
        writers = (to_router, to_engine)
        self.open.add(writers)
        # Names of requests that the engine has not begun to answer, oldest first.
        waiting = collections.deque()
        try:
            await asyncio.gather(self.requests(from_router, to_engine, waiting), self.answers(from_engine, to_router, waiting))
        except (OSError, asyncio.CancelledError):
            for writer in writers:
                reset(writer)
        finally:
            self.open.discard(writers)
            for writer in writers:
                writer.close()

    async def requests(self, reader, writer, waiting):
        last = b""
        while data := await reader.read(1 << 16):
            await self.moves.wait()
            seen = last + data
            waiting.extend(NAMED.findall(seen))
            # A name that is cut between two reads is found with the next; one that was found is not found again.
            last = b"" if NAMED.search(seen) else seen[-64:]
            if self.mode != "swallow":
                writer.write(data)
                await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def answers(self, reader, writer, waiting):
        while data := await reader.read(1 << 16):
            await self.moves.wait()
            if waiting and data.startswith(b"HTTP/1.1 200"):
                self.answered[waiting.popleft()].append(self.name)
            elif waiting and data.startswith(b"HTTP/1.1"):
                waiting.popleft()
            writer.write(data)
            await writer.drain()
        writer.close()


async def read_chunks(reader):
    """A body in chunks; whether it came to its proper end."""
    body = b""
    while True:
        line = await reader.readline()
        if not line.endswith(b"\r\n"):
            return body, False
        size = int(line.split(b";")[0], 16)
        piece = await reader.readexactly(size + 2)
        if size == 0:
            return body, True
        body += piece[:-2]


class Clients:
    """Open-loop load. Each request has one outcome, counted under the fault of the moment."""

    def __init__(self, port, rate, seed):
        self.port, self.rate, self.tls_port, self.tls = port, rate, None, None
        self.random, self.fault, self.number, self.under_way = random.Random(seed), "before", 0, 0
        self.outcomes = collections.defaultdict(collections.Counter)
        self.times = collections.defaultdict(list)  # (fault, worker) -> seconds of good answers
        self.odd = []
        self.texts = {}
        self.running, self.leaving = True, False

    async def learn(self, port):
        """What the engine itself answers to each prompt."""
        for prompt in PROMPTS:
            _, _, body = await self.ask(port, prompt, False, "learn", None)
            self.texts[prompt] = json.loads(body)["choices"][0]["text"]

    async def ask(self, port, prompt, stream, name, tls, leaves=False):
        """(status, worker, body or None where it was cut)"""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None)
        try:
            body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": TOKENS, "stream": stream}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nhost: chaos\r\ncontent-type: application/json\r\nx-request-id: {name}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            status = int(answer[9:12])
            worker = (re.findall(r"\r\nx-forebay-worker: (\S+)", answer) or [None])[0]
            if leaves:
                return "left", worker, b""
            if "transfer-encoding: chunked" in answer:
                got, is_whole = await read_chunks(reader)
            elif length := re.search(r"content-length: (\d+)", answer):
                got, is_whole = await reader.readexactly(int(length.group(1))), True
            else:
                got, is_whole = await reader.read(-1), False
            return status, worker, got if is_whole else None
        finally:
            reset(writer) if leaves else writer.close()

    def judge(self, status, prompt, stream, body):
        if status == "left":
            return "left"
        if status != 200:
            return str(status)
        if body is None:
            return "cut, told by its end"
        if not stream:
            return "good" if json.loads(body)["choices"][0]["text"] == self.texts[prompt] else "WRONG"
        events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
        parts = [json.loads(event) for event in events if event != b"[DONE]"]
        if any("error" in part for part in parts):
            return "cut, told by an event"
        if not events or events[-1] != b"[DONE]":
            return "UNTOLD: a clean end without [DONE]"
        text = "".join(part["choices"][0]["text"] for part in parts if part["choices"])
        return "good" if text == self.texts[prompt] else "WRONG"

    async def one(self):
        self.number += 1
        self.under_way += 1
        fault, name, begin = self.fault, f"q{self.number}", time.monotonic()
        prompt, stream = self.random.choice(PROMPTS), self.random.random() < 0.5
        leaves = self.leaving and self.random.random() < 0.5
        worker, outcome = None, ""
        secure = self.tls is not None and self.random.random() < 0.5
        try:
            asked = self.ask(self.tls_port if secure else self.port, prompt, stream, name, self.tls if secure else None, leaves)
            status, worker, body = await asyncio.wait_for(asked, ANSWER_S_MAX)
            outcome = self.judge(status, prompt, stream, body)
        except (TimeoutError, asyncio.TimeoutError):
            outcome = "UNANSWERED"
        except asyncio.IncompleteReadError as error:
            # Between head and end the client sees that bytes are missing. Before the head nobody has told it anything.
            outcome = "cut, told by its end" if error.expected is not None else "CLOSED without an answer"
        except OSError as error:
            outcome = "refused" if isinstance(error, ConnectionRefusedError) else f"connection: {type(error).__name__}"
        except (ValueError, KeyError, IndexError) as error:
            outcome = f"UNREADABLE: {error!r}"
        finally:
            self.under_way -= 1
        spent = time.monotonic() - begin
        self.outcomes[fault][outcome] += 1
        if outcome == "good":
            self.times[fault, worker].append(spent)
        elif outcome != "left":
            self.odd.append((round(begin, 3), fault, name, worker, outcome, round(spent, 3)))

    async def load(self):
        tasks, next_at = set(), time.monotonic()
        while self.running:
            task = asyncio.create_task(self.one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            next_at += self.random.expovariate(self.rate)
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        if tasks:
            await asyncio.wait(tasks, timeout=ANSWER_S_MAX + 5)
