#!/usr/bin/env python3
"""The official OpenAI client, and Anthropic's where a stream breaks off, against the router in front of simulated engines.

usage: tools/openai_client.py [--cancel-ms-max 100]      needs the packages `openai` and `anthropic` (tools/ci/40-openai)
env:   FOREBAY   program under test, default target/dist/forebay
"""

import argparse
import asyncio
import http.server
import sys
import tempfile
import threading
import time

from rig import Missing, Rig, Score, get, samples, total

try:
    import anthropic
    import httpx
    import openai
except ImportError as error:
    raise Missing("a package is missing: run tools/ci/40-openai, or `pip install openai anthropic`") from error

MODEL = "tiny"
CHAT = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Say hello."}]
score = Score()


def raised(kind, call):
    """The exception of `kind` that `call` raised, or None with the reason printed."""
    try:
        got = call()
    except kind as error:
        return error
    except openai.OpenAIError as error:
        print(f"     raised {type(error).__name__}: {error}")
        return None
    print(f"     returned {str(got)[:120]}")
    return None


def unary_and_stream(client):
    answer = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8)
    score.check("chat: an answer with text and usage", answer.choices[0].message.content and answer.usage.completion_tokens > 0)

    stream = client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    score.check("stream: several chunks, one finish reason", len(chunks) > 3 and text and len(ends) == 1, f"{len(chunks)} chunks, {ends}")
    score.check("stream: usage in the last chunk", chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12)


def headers(client):
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=CHAT, max_tokens=2)
    worker = raw.headers.get("x-forebay-worker")
    score.check("header x-forebay-worker names the worker", worker, worker)
    score.check("header x-request-id is there", raw.headers.get("x-request-id"), raw.headers.get("x-request-id"))
    score.check("raw response parses", raw.parse().choices[0].message.role == "assistant")
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=CHAT, max_tokens=2, extra_headers={"x-request-id": "given-by-client-1"}
    )
    score.check("a client's x-request-id comes back", raw.headers.get("x-request-id") == "given-by-client-1", raw.headers.get("x-request-id"))


def other_endpoints(client):
    answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5)
    score.check("completions: an answer", answer.choices[0].text is not None and answer.usage.prompt_tokens > 0)
    texts = [chunk.choices[0].text for chunk in client.completions.create(model=MODEL, prompt="Once", max_tokens=5, stream=True) if chunk.choices]
    score.check("completions: a stream", len(texts) >= 5, len(texts))
    names = [model.id for model in client.models.list()]
    score.check("models: the engines' model, once", names == [MODEL], names)
    answer = client.embeddings.create(model=MODEL, input=["one text", "another"], encoding_format="float")
    score.check("embeddings: one vector a text", len(answer.data) == 2 and len(answer.data[0].embedding) > 0)


def errors(client, url):
    error = raised(openai.NotFoundError, lambda: client.chat.completions.create(model="no-such-model", messages=CHAT))
    score.check("unknown model: NotFoundError with a body", error is not None and error.body and error.body.get("message"), error)
    error = raised(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages="not a list"))
    score.check("messages of a wrong type: BadRequestError", error is not None, error)
    broken = httpx.post(f"{url}/v1/chat/completions", content=b'{"model": ', headers={"content-type": "application/json"})
    shape = broken.json().get("error", {}) if broken.headers.get("content-type", "").startswith("application/json") else {}
    score.check("broken JSON: 400 in the OpenAI error shape", broken.status_code == 400 and shape.get("message"), broken.text[:160])
    missing = httpx.get(f"{url}/v1/no-such-route")
    score.check("unknown route: 404", missing.status_code == 404, missing.status_code)
    wrong = httpx.get(f"{url}/v1/chat/completions")
    score.check("wrong method: 405 with Allow", wrong.status_code == 405 and "POST" in wrong.headers.get("allow", ""), f"{wrong.status_code} {wrong.headers.get('allow')}")
    after = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=2)
    score.check("the client works after errors", after.choices)


def running(engines):
    return sum(total(f"{engine.url}/metrics", "vllm:num_requests_running") for engine in engines)


def until_running(engines, wanted, seconds_max):
    """Seconds until the engines run `wanted` requests, or None."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds_max:
        if running(engines) == wanted:
            return time.monotonic() - begin
        time.sleep(0.002)
    return None


def cancels(client, router, engines, milliseconds_max):
    stream = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=50_000, stream=True)
    for seen, _ in enumerate(stream):
        if seen == 3:
            break
    ran = score.check("cancel: one request runs before", until_running(engines, 1, 2.0) is not None)
    stream.close()
    took = until_running(engines, 0, 5.0)
    score.check("cancel mid-stream: the engine stops", ran and took is not None and took * 1e3 <= milliseconds_max, in_ms(took))

    hurried = client.with_options(timeout=0.4)
    error = raised(openai.APITimeoutError, lambda: hurried.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=50_000))
    took = until_running(engines, 0, 5.0)
    score.check("cancel before the first byte: the engine stops", error is not None and took is not None and took * 1e3 <= milliseconds_max, in_ms(took))
    time.sleep(0.2)
    left = samples(f"{router.admin}/metrics", "forebay_in_flight")
    score.check("cancel: no lease is left in the router", left and not any(value for _, value in left), left)


def in_ms(seconds):
    return "never" if seconds is None else f"{seconds * 1e3:.0f} ms"


def concurrent(url):
    async def burst():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
            async def one(number):
                messages = [{"role": "user", "content": f"question {number}"}]
                if number % 2:
                    raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, max_tokens=4)
                    return raw.headers.get("x-forebay-worker"), len(raw.parse().choices)
                stream = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, stream=True)
                return stream.response.headers.get("x-forebay-worker"), len([chunk async for chunk in stream])

            return await asyncio.gather(*(one(number) for number in range(128)), return_exceptions=True)

    answers = asyncio.run(burst())
    wrong = [answer for answer in answers if isinstance(answer, BaseException) or not answer[1]]
    workers = {answer[0] for answer in answers if not isinstance(answer, BaseException)}
    score.check("128 at once: all answered", not wrong, wrong[:2])
    score.check("128 at once: both workers served", len(workers) == 2, workers)


def queue_comments(rig, engine):
    """A router that gives the engine one request at a time and tells those who wait where they stand."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write('rank_concurrency_max = 1\n[queue]\nsse_comments = true\nwait_max = "2s"\n')
        file.flush()
        router = rig.router([engine.url], "--config", file.name)
    client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="unused", max_retries=0, timeout=20)

    def behind(tokens, call):
        """The result of `call` while another request keeps the engine busy."""
        ask = client.chat.completions.create
        other = threading.Thread(target=lambda: ask(model=MODEL, messages=CHAT, max_tokens=tokens))
        other.start()
        until_running([engine], 1, 2.0)
        try:
            return call()
        finally:
            other.join()

    def stream():
        stream = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=12, stream=True)
        chunks = [chunk for chunk in stream if chunk.choices]
        return stream.response.headers, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    direct, text = stream()
    score.check("comments: a stream that need not wait names its worker", direct.get("x-forebay-worker"))
    head, waited = behind(100, stream)
    score.check("comments: a stream that waited has the same text", text and waited == text, waited)
    score.check("comments: its head came before a worker was known", "x-forebay-worker" not in head and head.get("x-request-id"), dict(head))
    error = behind(800, lambda: raised(openai.APIError, stream))
    code = error and error.code
    score.check("comments: a wait that is too long raises APIError in the stream", code == "rate_limit_exceeded", error)

    def responses():
        return list(client.responses.create(model=MODEL, input="Say hello.", stream=True))

    error = behind(800, lambda: raised(openai.APIError, responses))
    score.check("comments: the same for responses", error is not None and "got free" in str(error), error)


class DyingWorker(http.server.BaseHTTPRequestHandler):
    """Begins a stream in the words of the API that is asked, and ends the connection."""

    protocol_version = "HTTP/1.1"
    # So many bytes of a second event come too.
    more = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        event = {
            "/v1/chat/completions": 'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}',
            "/v1/responses": 'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}',
            "/v1/messages": 'event: ping\ndata: {"type":"ping"}',
        }[self.path]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        part = event + "\n\n" + event[: self.more]
        self.wfile.write(f"{len(part):x}\r\n{part}\r\n".encode())
        self.close_connection = True

    def log_message(self, *_):
        pass


def breaks_off(rig):
    """A worker dies between events or inside one: the client of each API raises its own error, in the router's words."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), DyingWorker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    router = rig.router([f"http://127.0.0.1:{server.server_port}"], "--engine", "openai", "--health", "off")
    mine = openai.OpenAI(base_url=f"{router.url}/v1", api_key="unused", max_retries=0, timeout=20)
    other = anthropic.Anthropic(base_url=router.url, api_key="unused", max_retries=0, timeout=20)
    ask = {"model": MODEL, "messages": CHAT[1:], "max_tokens": 40, "stream": True}
    for name, kind, call in (
        ("chat", openai.APIError, lambda: list(mine.chat.completions.create(**ask))),
        ("responses", openai.APIError, lambda: list(mine.responses.create(model=MODEL, input="Say hello.", stream=True))),
        ("messages", anthropic.APIStatusError, lambda: list(other.messages.create(**ask))),
    ):
        for DyingWorker.more in (0, 3, 20, 50):
            error = raised(kind, call)
            what = f"breaks off behind {DyingWorker.more} bytes of an event: {name} raises {kind.__name__}"
            score.check(what, error is not None and "in the middle" in str(error), error)
    server.shutdown()


def guarded(group, *arguments):
    """Runs a group of checks; what it raises fails it, and the other groups still run."""
    try:
        group(*arguments)
    except Exception as error:  # noqa: BLE001: whatever went wrong, it is this group's result.
        score.check(f"{group.__name__}: ran to its end", False, f"{type(error).__name__}: {error}")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cancel-ms-max", type=float, default=100.0, help="longest time from close to an idle engine")
    options.add_argument("--wrap", default="", help="program that starts the router, e.g. tools/without_io_uring.py")
    given = options.parse_args()
    with Rig() as rig:
        engines = [rig.engine("--model", MODEL, "--itl-ms", "5") for _ in range(2)]
        urls = [engine.url for engine in engines]
        router = rig.router(urls, wrap=given.wrap.split())
        client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="unused", max_retries=0, timeout=20)
        guarded(unary_and_stream, client)
        guarded(headers, client)
        guarded(other_endpoints, client)
        guarded(errors, client, router.url)
        guarded(cancels, client, router, engines, given.cancel_ms_max)
        guarded(concurrent, router.url)
        guarded(queue_comments, rig, engines[0])
        guarded(breaks_off, rig)
        score.check("admin: /workers lists both", all(url.split("//")[1] in get(f"{router.admin}/workers")[1] for url in urls))
        score.check("router: stops cleanly on SIGTERM", router.stop() == 0, router.child.returncode)
    return score.finish()


if __name__ == "__main__":
    sys.exit(main())
