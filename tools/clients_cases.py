"""What tools/clients asks with one of the SDKs of one server: prints {case: [outcome, detail]} as JSON.

The outcome is `ok` or the name of the exception with its status; the detail is what the client was given: texts, counts,
kinds of events. Ids, times and words of errors are not in it.

usage: clients_cases.py http|openai|anthropic|langchain URL      (Python of target/clients)
"""

import asyncio
import http.client
import json
import sys

MODEL = "tiny"
CHAT = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Say hello to the router."}]
TOOL = {
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
AT_ONCE = 64
found = {}


def note(case, ask):
    try:
        found[case] = ["ok", ask()]
    except Exception as error:  # noqa: BLE001: whatever a client raises is its outcome.
        status = getattr(error, "status_code", None)
        found[case] = [type(error).__name__ + (f" {status}" if status else ""), None]


# Plain HTTP.


def plain(url, method, path, body=None, headers=None):
    """(status, parsed body or its length)"""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, text


def ask_http(url):
    for path in ("/health", "/ping", "/version", "/v1/models"):
        note(f"GET {path}", lambda path=path: plain(url, "GET", path)[0])
    chat = {"messages": CHAT, "max_tokens": 4, "temperature": 0}

    def text_of(body, **headers):
        status, text = plain(url, "POST", "/v1/chat/completions", body, headers)
        return [status, json.loads(text)["choices"][0]["message"]["content"]] if status == 200 else [status]

    note("chat", lambda: text_of({"model": MODEL, **chat}))
    note("chat without a model", lambda: text_of(chat))
    note("another model", lambda: text_of({"model": "another", **chat}))
    note("a body that is no JSON", lambda: text_of(b"{"))
    note("messages that are no list", lambda: text_of({"model": MODEL, **chat, "messages": 5}))
    note("no such path", lambda: plain(url, "POST", "/v1/nope", {})[0])
    note("tokenize", lambda: json.loads(plain(url, "POST", "/tokenize", {"model": MODEL, "prompt": "a b c"})[1])["count"])


# OpenAI.


def usage(answer):
    return [answer.usage.prompt_tokens, answer.usage.completion_tokens] if answer.usage else None


def message(answer):
    return [[choice.index, choice.message.content, choice.finish_reason] for choice in answer.choices] + [usage(answer)]


def pieces(stream):
    """Text, whether it came in pieces, finish reason, usage, of a stream of a chat or a completion. How many pieces depends
    on the moment: a busy vLLM puts several tokens into one."""
    text, count, reason, counted = "", 0, None, None
    for chunk in stream:
        counted = usage(chunk) or counted
        for choice in chunk.choices:
            piece = (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
            text, count, reason = text + piece, count + bool(piece), choice.finish_reason or reason
    return [text, count > 1, reason, counted]


def ask_openai(url):
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    chat = {"model": MODEL, "messages": CHAT, "max_tokens": 12, "temperature": 0}
    text = {"model": MODEL, "prompt": "Say hello to", "max_tokens": 12, "temperature": 0}
    create, complete, respond = client.chat.completions.create, client.completions.create, client.responses.create
    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
    note("models.list", lambda: [model.id for model in client.models.list()])
    note("chat", lambda: message(create(**chat)))
    note("chat, stream", lambda: pieces(create(**chat, stream=True)))
    note("chat, stream with usage", lambda: pieces(create(**chat, **with_usage)))
    note("chat, two choices", lambda: message(create(**chat, n=2)))
    note("chat, content in parts", lambda: message(create(**{**chat, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]})))
    note("chat, logprobs", lambda: len(create(**chat, logprobs=True, top_logprobs=2).choices[0].logprobs.content))
    note("chat, stop", lambda: message(create(**chat, stop=["e"])))
    note("chat, tools", lambda: message(create(**chat, tools=[{"type": "function", "function": TOOL}])))
    note("chat, JSON object", lambda: create(**chat, response_format={"type": "json_object"}).choices[0].finish_reason)
    note("chat, a seed and a user", lambda: message(create(**chat, seed=7, user="one")))
    note("chat, no room in the context", lambda: message(create(**{**chat, "max_tokens": 1_000_000})))
    note("chat, no messages", lambda: message(create(**{**chat, "messages": []})))
    note("chat, a role that is none", lambda: message(create(**{**chat, "messages": [{"role": "nobody", "content": "x"}]})))
    note("chat, temperature out of range", lambda: message(create(**{**chat, "temperature": -1})))
    note("another model", lambda: message(create(**{**chat, "model": "another"})))
    note("chat, raw answer", lambda: create.__self__.with_raw_response.create(**chat).http_response.status_code)
    note("completion", lambda: [complete(**text).choices[0].text, usage(complete(**text))])
    note("completion, stream", lambda: pieces(complete(**text, **with_usage)))
    note("completion, two prompts", lambda: sorted([c.index, c.text] for c in complete(**{**text, "prompt": ["a", "b"]}).choices))
    note("completion, token ids", lambda: complete(**{**text, "prompt": [5, 6, 7]}).choices[0].text)
    note("responses", lambda: respond(model=MODEL, input="Say hello", max_output_tokens=12, temperature=0).output_text)
    note("responses, stream", lambda: list(dict.fromkeys(event.type for event in respond(model=MODEL, input="Say hello", max_output_tokens=12, temperature=0, stream=True))))
    note("embeddings", lambda: len(client.embeddings.create(model=MODEL, input="a").data))
    note("time-out", lambda: message(client.with_options(timeout=0.05).chat.completions.create(**{**chat, "max_tokens": 400})))
    note("a stream that is left, then a chat", lambda: leave(create, chat))
    note(f"{AT_ONCE} chats at once", lambda: asyncio.run(at_once(url, chat)))


def leave(create, chat):
    with create(**{**chat, "max_tokens": 400}, stream=True) as stream:
        next(iter(stream))
    return message(create(**chat))


async def at_once(url, chat):
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        asked = [client.chat.completions.create(**{**chat, "messages": [{"role": "user", "content": f"Number {n}"}]}) for n in range(AT_ONCE)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    return sum(not isinstance(answer, Exception) for answer in answers)


# Anthropic.


def ask_anthropic(url):
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 12, "temperature": 0}
    tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}

    def answer(**more):
        got = client.messages.create(**{**chat, **more})
        return [[part.type for part in got.content], "".join(getattr(part, "text", "") for part in got.content), got.stop_reason, got.usage.input_tokens, got.usage.output_tokens]

    def streamed(**more):
        with client.messages.stream(**{**chat, **more}) as stream:
            kinds = list(dict.fromkeys(event.type for event in stream))
            return [kinds, stream.get_final_text()]

    note("message", answer)
    note("message, system", lambda: answer(system="You are brief."))
    note("message, content in parts", lambda: answer(messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]))
    note("message, several turns", lambda: answer(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]))
    note("message, tools", lambda: answer(tools=[tool]))
    note("message, stop", lambda: answer(stop_sequences=["e"]))
    note("stream", streamed)
    note("stream, system", lambda: streamed(system="You are brief."))
    note("another model", lambda: answer(model="another"))
    note("no messages", lambda: answer(messages=[]))


# LangChain.


def ask_langchain(url):
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    from langchain_openai import ChatOpenAI, OpenAI

    given = {"base_url": f"{url}/v1", "api_key": "none", "model": MODEL, "temperature": 0, "max_retries": 0}
    chat = ChatOpenAI(**given, max_tokens=12)
    turns = [SystemMessage("You are brief."), HumanMessage("a"), AIMessage("b"), HumanMessage("c")]

    def answer(model, asked):
        got = model.invoke(asked)
        return [got.content, got.response_metadata.get("finish_reason"), got.usage_metadata and got.usage_metadata["total_tokens"]]

    note("invoke", lambda: answer(chat, "Say hello"))
    note("invoke, several turns", lambda: answer(chat, turns))
    note("stream", lambda: "".join(chunk.content for chunk in chat.stream("Say hello")))
    note("batch of 20", lambda: [got.content for got in chat.batch([f"Number {n}" for n in range(20)])])
    note("tools", lambda: answer(chat.bind_tools([{"type": "function", "function": TOOL}]), "Say hello"))
    note("astream", lambda: asyncio.run(gathered(chat)))
    note("completion", lambda: OpenAI(**given, max_tokens=12).invoke("Say hello to"))
    note("another model", lambda: answer(ChatOpenAI(**{**given, "model": "another"}), "Say hello"))


async def gathered(chat):
    return "".join([chunk.content async for chunk in chat.astream("Say hello")])


ASK = {"http": ask_http, "openai": ask_openai, "anthropic": ask_anthropic, "langchain": ask_langchain}

if __name__ == "__main__":
    ASK[sys.argv[1]](sys.argv[2])
    json.dump(found, sys.stdout)
