#!/usr/bin/env python3
"""The official clients through an overload: more requests at once than the workers and the queue take.

A recorder stands between the clients and the router. Every request has to be answered in the end, and after each 429
the client has to stay away for as long as the answer says. OpenAI for Python and Node, Anthropic for Python.

usage: tools/overload.py [--requests 32]      needs `openai`, `anthropic` and Node (tools/ci/40-openai sets them up)
env:   FOREBAY   program under test, default target/dist/forebay
"""

import argparse
import asyncio
import collections
import http.server
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time

from rig import ROOT, Missing, Rig, Score, free_ports, total

try:
    import anthropic
    import openai
except ImportError as error:
    raise Missing(f"{error}: run tools/ci/40-openai, or `pip install openai anthropic`") from error

MODEL = "tiny"
EARLY_S_MAX = 0.002  # clocks and timers of the clients may be that much off
RETRIES = 40
Answer = collections.namedtuple("Answer", "asked_at answered_at status retry_ms retry_s should_retry attempt")


class Recorder(threading.Thread):
    """Relays HTTP/1.1 to the router and notes, for each value of the header x-client, what came when."""

    def __init__(self, port, router_port):
        super().__init__(daemon=True)
        self.port, self.router_port = port, router_port
        self.answers = collections.defaultdict(list)
        self.listening = threading.Event()
        self.start()
        self.listening.wait(10)

    def run(self):
        asyncio.run(self.serve())

    async def serve(self):
        server = await asyncio.start_server(self.connection, "127.0.0.1", self.port)
        self.listening.set()
        await server.serve_forever()

    async def connection(self, reader, writer):
        try:
            router = await asyncio.open_connection("127.0.0.1", self.router_port)
            while await self.exchange(reader, writer, *router):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass  # either side left
        finally:
            writer.close()

    async def exchange(self, reader, writer, from_router, to_router):
        """One request and its answer; false when the connection ends with it."""
        head = await reader.readuntil(b"\r\n\r\n")
        asked_at = time.monotonic()
        to_router.write(head + await reader.readexactly(int(field(head, "content-length") or 0)))
        answer = await from_router.readuntil(b"\r\n\r\n")
        length = field(answer, "content-length")
        body = await from_router.readexactly(int(length)) if length else b""
        # Before it is sent on: the client's pause may begin at once.
        ms, whole = field(answer, "retry-after-ms"), field(answer, "retry-after")
        self.answers[field(head, "x-client")].append(
            Answer(asked_at, time.monotonic(), int(answer[9:12]), ms and float(ms), whole and int(whole),
                   field(answer, "x-should-retry"), field(head, "x-stainless-retry-count"))
        )  # fmt: skip
        writer.write(answer + body)
        await writer.drain()
        while not length:
            size = await from_router.readuntil(b"\r\n")
            writer.write(size + await from_router.readexactly(int(size, 16) + 2))
            await writer.drain()
            length = int(size, 16) == 0
        return field(answer, "connection") != "close"


def field(head, name):
    match = re.search(rb"(?im)^" + name.encode() + rb":[ \t]*([^\r\n]*)", head)
    return match[1].decode("latin-1") if match else None


class MessagesWorker(http.server.BaseHTTPRequestHandler):
    """Answers /v1/messages after 0.2 s; the simulated engine does not speak that API."""

    protocol_version = "HTTP/1.1"
    served = 0

    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(0.2)
        MessagesWorker.served += 1
        usage = {"input_tokens": 1, "output_tokens": 1}
        self.reply({"id": "m", "type": "message", "role": "assistant", "model": MODEL, "content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn", "stop_sequence": None, "usage": usage})

    def reply(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def messages_workers():
    """URLs of two."""
    urls = []
    for port in free_ports(2):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), MessagesWorker)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        urls.append(f"http://127.0.0.1:{port}")
    return urls


def text_of(number):
    return f"question {number} " + "word " * 200


async def openai_python(url, requests):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=RETRIES, timeout=60) as client:
        async def one(number):
            ask = {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": text_of(number)}]}
            headers = {"x-client": f"openai-{number}"}
            if number % 2 == 0:
                answer = await client.chat.completions.create(**ask, extra_headers=headers)
                return answer.choices[0].message.content
            stream = await client.chat.completions.create(**ask, stream=True, extra_headers=headers)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        return await asyncio.gather(*(one(number) for number in range(requests)), return_exceptions=True)


async def anthropic_python(url, requests):
    async with anthropic.AsyncAnthropic(base_url=url, api_key="unused", max_retries=RETRIES, timeout=60) as client:
        async def one(number):
            messages = [{"role": "user", "content": text_of(number)}]
            answer = await client.messages.create(
                model=MODEL, max_tokens=10, messages=messages, extra_headers={"x-client": f"anthropic-{number}"}
            )
            return answer.content[0].text

        return await asyncio.gather(*(one(number) for number in range(requests)), return_exceptions=True)


def python_client(run):
    def ended(url, requests):
        answers = asyncio.run(run(url, requests))
        faults = [f"{type(answer).__name__}: {answer}" for answer in answers if isinstance(answer, BaseException)]
        return sum(isinstance(answer, str) and answer != "" for answer in answers), faults

    return ended


MESSAGES = python_client(anthropic_python)


def node_client(url, requests):
    script = os.path.join(ROOT, "tools", "openai_client.mjs")
    argv = ["node", script, f"{url}/v1", str(requests)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=240)
    if done.returncode:
        return 0, [done.stderr[-400:]]
    told = json.loads(done.stdout)
    return told["answered"], told["faults"]


def backed_off(score, name, histories):
    """Did each client stay away as long as it was told?"""
    refused = [answer for history in histories for answer in history if answer.status == 429]
    score.check(f"{name}: some were refused", refused, f"{len(refused)} answers with 429")
    told = [answer for answer in refused if answer.retry_ms is not None]
    good = all(answer.retry_s >= 1 and answer.retry_s * 1000 >= answer.retry_ms > 0 for answer in told)
    score.check(f"{name}: retry-after is whole seconds and not below retry-after-ms", good, f"{len(told)} of {len(refused)} were told a time")
    score.check(f"{name}: every 429 says x-should-retry: true", all(answer.should_retry == "true" for answer in refused))
    late = [
        after.asked_at - before.answered_at - before.retry_ms / 1000
        for history in histories
        for before, after in zip(history, history[1:])
        if before.status == 429 and before.retry_ms is not None
    ]
    early = [seconds for seconds in late if seconds < -EARLY_S_MAX]
    detail = f"{len(late)} retries, {statistics.median(late) * 1e3:.0f} ms late in the middle" if late else "no retries"
    score.check(f"{name}: no client came back before its time", late and not early, f"{detail}, {len(early)} early")
    counts = [[answer.attempt for answer in history] for history in histories]
    score.check(f"{name}: one attempt after the other", all(got == [str(n) for n in range(len(got))] for got in counts))


def overload(score, name, client, requests):
    """Four places, a queue of four, and `requests` at once."""
    with Rig() as rig:
        engines = [] if client is MESSAGES else [rig.engine("--model", MODEL, "--itl-ms", "20") for _ in range(2)]
        urls = [engine.url for engine in engines] or messages_workers()
        router = rig.router(urls, "--rank-concurrency-max", "2", "--queue-depth-max", "4")
        (port,) = free_ports(1)
        recorder = Recorder(port, router.port)
        begin = time.monotonic()
        answered, faults = client(f"http://127.0.0.1:{port}", requests)
        took = time.monotonic() - begin
        score.check(f"{name}: all requests are answered in the end", answered == requests and not faults, f"{answered} of {requests} in {took:.1f} s {faults[:2] or ''}")
        histories = list(recorder.answers.values())
        score.check(f"{name}: the recorder saw every client", len(histories) == requests, len(histories))
        backed_off(score, name, histories)
        refused = sum(answer.status == 429 for history in histories for answer in history)
        counted = total(f"{router.admin}/metrics", "forebay_rejected_total")
        score.check(f"{name}: forebay_rejected_total counts them", counted == refused, f"{counted:.0f}, {refused} seen")
        served = sum(total(f"{engine.url}/metrics", "vllm:request_success_total") for engine in engines) or MessagesWorker.served
        score.check(f"{name}: the engines served each request once", served == requests, f"{served:.0f}")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=32)
    given = options.parse_args()
    if not shutil.which("node"):
        raise Missing("node is missing: run tools/ci/setup, or apt-get install nodejs npm")
    score = Score()
    clients = {"openai, Python": python_client(openai_python), "openai, Node": node_client, "anthropic, Python": MESSAGES}
    for name, client in clients.items():
        overload(score, name, client, given.requests)
    return score.finish()


if __name__ == "__main__":
    sys.exit(main())
