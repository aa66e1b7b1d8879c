"""Conversations of the shapes that frontends render in different ways, turn by turn, as bodies of chat requests."""

import json

WORDS = "route request worker prefix cache overlap load tokens engine block rank queue stream answer please explain how why".split()
BEYOND_ASCII = ["naïve café", "日本語で答えて。", "Привет", "👩‍👩‍👧 🇩🇪", "e\u0301 ½ ﬁ", '<b>&amp;</b> "now"', "C:\\temp\n\ttab"]


def words(rng, low, high):
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))
    return f"{text} {rng.choice(BEYOND_ASCII)}" if rng.random() < 0.3 else text


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def function(name, properties, description="Does it.", **more):
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters, **more}}


SEARCH = function("search", {"query": {"type": "string", "description": "Was – 何"}, "limit": {"type": "integer", "default": 5}}, 'Finds "it" <b>&amp;</b>')
NUMBERS = function(
    "measure",
    {"x": {"type": "number", "minimum": 0.1, "maximum": 1e22, "default": 1.50}, "y": {"type": "number", "multipleOf": 1e-7}, "z": {"type": "integer", "maximum": 2**63 - 1, "minimum": -1}, "w": {"const": 100.0}},
)  # fmt: skip
LISTS = function(
    "choose",
    {"unit": {"type": "string", "enum": ["c", "f", "it's", 'say "k"']}, "days": {"type": ["integer", "null"], "default": None}, "on": {"type": "boolean", "default": True}, "tags": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "default": ["a", 1, None, False]}},
    strict=True,
)  # fmt: skip
BARE = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}

ARGUMENTS = [
    '{"query":"Paris","limit":1.50}', '{"query": "a", "limit": 1e3, "low": -0.0, "tiny": 1E-7, "none": null, "yes": true}',
    '{"b":"\\u00e9\\ud83d\\ude00","a":[1,{"k":"v \\n \\" \\/ "}],"":{}}', "{}", '{"list": [], "deep": {"x": {"y": [[1], [2.0, "z"]]}}}',
    '{"query": "日本", "limit": 9007199254740993}', '{"big": 18446744073709551615, "small": -9223372036854775808}',
]  # fmt: skip


def call(number, name, arguments):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def user(rng, **more):
    return {"role": "user", "content": words(rng, 8, 60), **more}


def answer(rng, **more):
    return {"role": "assistant", "content": words(rng, 5, 40), **more}


def system(rng, role="system"):
    return {"role": role, "content": words(rng, 40, 90)}


def called(rng, turn, name="search", arguments=None, text="", result=None):
    """An answer that calls a function, and the result."""
    arguments = arguments or json.dumps({"query": words(rng, 1, 4), "limit": turn}, ensure_ascii=bool(turn % 2))
    number = rng.randint(0, 99_999)
    said = {"role": "assistant", "content": text, "tool_calls": [call(number, name, arguments)]}
    return [said, {"role": "tool", "tool_call_id": f"call{number:05}", "content": result if result is not None else words(rng, 5, 30)}]


def talk(shape, rng, turns):
    """The bodies of one conversation, in order."""
    return list(globals()[f"shape_{shape}"](rng, turns))


def shape_plain(rng, turns):
    messages = [system(rng)]
    for _ in range(turns):
        messages.append(user(rng))
        yield {"messages": list(messages)}
        messages.append(answer(rng))


def shape_parts(rng, turns):
    messages = [{"role": "system", "content": parts(words(rng, 30, 60), "Be brief.")}]
    for turn in range(turns):
        texts = [words(rng, 5, 40), "Thanks.", *([""] if turn == 1 else []), *([words(rng, 3, 9)] if turn == 2 else [])]
        messages.append({"role": "user", "content": parts(*texts)})
        yield {"messages": list(messages)}
        messages.append({"role": "assistant", "content": parts(words(rng, 5, 20), "Done.") if turn % 2 else words(rng, 5, 20)})


def shape_tools(rng, turns):
    messages = [system(rng)]
    for turn in range(turns):
        messages.append(user(rng))
        yield {"messages": list(messages), "tools": [SEARCH, BARE]}
        messages += [*called(rng, turn, text=rng.choice(["", None, words(rng, 2, 8)])), answer(rng)]


def shape_results(rng, turns):
    """Results of tools as text, parts, JSON, an empty text, with names, and two in parallel."""
    messages = [system(rng)]
    results = [words(rng, 9, 20), parts(words(rng, 5, 9), "End."), '{"t": 21.0, "ok": true}', "", parts(words(rng, 2, 5))]
    for turn in range(turns):
        messages.append(user(rng))
        messages += called(rng, turn, result=results[turn % len(results)])
        if turn == 2:
            two = [call(77_001, "search", '{"query": "A"}'), call(77_002, "search", '{"query": "B"}')]
            messages.append({"role": "assistant", "content": "Two:", "tool_calls": two})
            messages += [{"role": "tool", "tool_call_id": f"call{number}", "content": f"result {number}"} for number in (77_002, 77_001)]
        if turn == 3:
            messages[-1]["name"] = "search"
        yield {"messages": list(messages), "tools": [SEARCH]}
        messages.append(answer(rng))


def shape_developer(rng, turns):
    messages = [system(rng, "developer")]
    for turn in range(turns):
        messages.append(user(rng))
        yield {"messages": list(messages), **({"tools": [SEARCH]} if turn > 2 else {})}
        messages.append(answer(rng))


def shape_arguments(rng, turns):
    messages = [system(rng)]
    for turn in range(turns):
        messages += [user(rng), *called(rng, turn, arguments=rng.choice(ARGUMENTS))]
        yield {"messages": list(messages), "tools": [SEARCH]}
        messages.append(answer(rng))


def shape_late_system(rng, turns):
    messages = [system(rng)]
    for turn in range(turns):
        if turn:
            messages.append({"role": rng.choice(["system", "system", "developer"]), "content": words(rng, 3, 9)})
        messages.append(user(rng))
        yield {"messages": list(messages)}
        messages.append(answer(rng))


def with_tools(rng, turns, *tools, name):
    messages = [system(rng)]
    for turn in range(turns):
        messages.append(user(rng))
        yield {"messages": list(messages), "tools": list(tools)}
        messages += [*called(rng, turn, name, arguments=rng.choice(ARGUMENTS)), answer(rng)]


def shape_numbers(rng, turns):
    return with_tools(rng, turns, NUMBERS, name="measure")


def shape_lists(rng, turns):
    return with_tools(rng, turns, LISTS, SEARCH, name="choose")


def shape_names(rng, turns):
    messages = [{**system(rng), "name": "rules"}]
    for _ in range(turns):
        messages.append(user(rng, name=rng.choice(["bob", "eve"])))
        yield {"messages": list(messages)}
        messages.append(answer(rng, name="al"))


def shape_reasoning(rng, turns):
    messages = [system(rng)]
    for turn in range(turns):
        messages.append(user(rng))
        kwargs = {"enable_thinking": bool(turn % 2), "thinking": bool(turn % 2)}
        yield {"messages": list(messages), **({"chat_template_kwargs": kwargs} if turn else {})}
        thought = {1: {"reasoning_content": words(rng, 5, 20)}, 2: {"reasoning": words(rng, 5, 20)}}.get(turn % 4, {})
        messages.append(answer(rng, **thought))
        if turn % 4 == 3:
            messages[-1]["content"] = f"<think>\n{words(rng, 5, 9)}\n</think>\n\n{words(rng, 5, 9)}"


def shape_prefill(rng, turns):
    """The last answer is continued."""
    messages = [system(rng)]
    for _ in range(turns):
        messages.append(user(rng))
        start = {"role": "assistant", "content": f"The answer is {words(rng, 1, 5)}"}
        yield {"messages": [*messages, start], "continue_final_message": True, "add_generation_prompt": False}
        messages.append(answer(rng))


def shape_choices(rng, turns):
    """Fields beside the messages: choices of a tool, formats, efforts, empty lists."""
    messages = [system(rng)]
    extras = [{"tools": []}, {"tools": [SEARCH], "tool_choice": "none"}, {"tools": [SEARCH], "tool_choice": "required"}, {"reasoning_effort": "high"},
              {"response_format": {"type": "json_object"}}]  # fmt: skip
    for turn in range(turns):
        messages.append(user(rng))
        yield {"messages": list(messages), **extras[turn % len(extras)]}
        messages.append(answer(rng))


SHAPES = [name.removeprefix("shape_") for name in list(globals()) if name.startswith("shape_")]
