"""Random bodies of chats, responses and messages, for the encoders of engines. A seed gives the same bodies again.

Bodies are JSON texts, because the spelling of a number or of a character is part of what the encoders read: `1.50`, `-0`, `1e400`,
escapes, lone surrogates and keys that stand twice."""

import json
import random
import re

TEXTS = [
    "", "a", "Hello!", "two\nlines", 'quote " and \\ back', "tab\t end \r\n", "日本語 é", "😀", " lead", "trail ", '{"a": 1}', "// c", "null",
    "x" * 50, "a -- b\n\nc", "\u2028 \x7f \x00", "Line\n", "# Instructions", " to=functions.f json", "e\u0301 ½ ﬁ", "<b>&amp;</b> 'it'", "    ", "\ufeffbom", "a\u00a0b",
    "*/ ```js\n```", "\n", "𝒳 \u200d 🇩🇪", "True None 1.0",
]  # fmt: skip
SPELLED = ["<|end|> x", "[INST] y [/INST] </s>", "<|start|>assistant", "<|call|>", "[TOOL_CALLS]", "<s>", "<|reserved_200017|>", "[THINK]a[/THINK]"]
BROKEN = ["\ud83d", "x\udc00y"]
NAMES = ["f", "get_weather", "read-file", "a1", "Lookup_2", "list_dir", "functions", "N" * 64]
NUMBERS = [
    "0", "-0", "-0.0", "1.50", "1e3", "1E-7", "1e22", "1e16", "123456789.125", "5e-324", "0.1", "100.0", "9007199254740993", "2.0e0", "1e-5", "0.0001", "3.4028234663852886e38", "1e23", "0.30000000000000004",
    "18446744073709551615", "-9223372036854775808", "1.7976931348623157e308", "7", "-12", "1234567890123", "4.35", "1e15", "2.2250738585072014e-308", "123456789012345.678", "9.109383713928e-31",
    "1234567890123456.7", "12345678901234567.0", "0.1000000000000000055511151231257827",
]  # fmt: skip
# Beyond 64 bits, or beyond all numbers.
VAST = ["1e400", "18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"]
RAW = re.compile(r'"@@([^"@]+)@@"')


def spelled(value, **options):
    """The JSON text of a value, with its numbers as they are spelled."""
    return RAW.sub(r"\1", json.dumps(value, **options))


class Bodies:
    """Makes bodies of one kind of client. `is_strict`: most conversations are such as Mistral's encoders accept."""

    def __init__(self, seed, is_strict=False):
        self.rng = random.Random(seed)
        self.is_strict = is_strict
        self.calls = 0

    def chance(self, share):
        return self.rng.random() < share

    def pick(self, *items):
        return self.rng.choice(items)

    def text(self):
        rng = self.rng
        if self.chance(0.01):
            return rng.choice(SPELLED)
        if self.chance(0.003):
            return rng.choice(BROKEN)
        return rng.choice(TEXTS) if self.chance(0.8) else " ".join(rng.choice(TEXTS) for _ in range(3))

    def full_text(self):
        return self.text() or "b"

    def name(self):
        return self.rng.choice(NAMES)

    def number(self):
        """Spelled as it stands, or with random digits."""
        if self.chance(0.2):
            return f"@@{self.rng.uniform(-1, 1) * 10.0 ** self.rng.randint(-30, 40)!r}@@"
        return f"@@{self.rng.choice(VAST if self.chance(0.01) else NUMBERS)}@@"

    def value(self, depth=0):
        kinds = [self.number, lambda: self.rng.randint(-5, 10**12), lambda: self.pick(True, False), lambda: None, self.text]
        if depth < 3:
            kinds += [
                lambda: [self.value(depth + 1) for _ in range(self.rng.randrange(3))],
                lambda: {self.text(): self.value(depth + 1) for _ in range(self.rng.randrange(3))},
                lambda: {"k": self.value(depth + 1), "ключ": self.value(depth + 1)},
            ]
        return self.rng.choice(kinds)()

    def schema(self, depth=0):
        rng, found, kind = self.rng, {}, self.rng.random()
        word = self.pick("object", "object", "string", "number", "integer", "boolean", "array", "null") if depth < 4 else "string"
        if kind < 0.08:
            found["type"] = rng.sample(["string", "integer", "null", "number"], rng.randint(1, 3))
        elif kind < 0.14 and depth < 4:
            found[self.pick("oneOf", "anyOf", "allOf")] = [self.schema(depth + 1) for _ in range(rng.randint(1, 3))]
        elif kind < 0.18:
            found["anyOf"] = [{"type": "string"}, {"type": "null"}]
        elif kind < 0.2:
            found["$ref"] = "#/$defs/P"
        elif kind < 0.22:
            found["const"] = self.value()
        else:
            found["type"] = word
        extras = {
            "description": (0.4, self.text), "title": (0.15, self.text), "default": (0.2, self.value), "nullable": (0.1, lambda: self.chance(0.5)), "minimum": (0.05, self.number),
            "examples": (0.1, lambda: [self.value() for _ in range(rng.randrange(3))]), "format": (0.05, lambda: "date-time"), "pattern": (0.03, lambda: "^a\\d+$"), "x-more": (0.03, self.value),
        }  # fmt: skip
        found |= {key: make() for key, (share, make) in extras.items() if self.chance(share)}
        if found.get("type") in ("string", "integer", None) and self.chance(0.25):
            found["enum"] = [self.pick("a", "b", 1, None, 'c"d', "é", True) for _ in range(rng.randrange(4))]
        if found.get("type") == "array" and self.chance(0.8):
            found["items"] = self.schema(depth + 1)
        if found.get("type") == "object":
            self.fill_object(found, depth)
        return self.shuffled(found)

    def fill_object(self, found, depth):
        if self.chance(0.9):
            found["properties"] = {f"{self.pick('a', 'b', 'city', 'ключ', 'x y', 'd-e')}{n}": self.schema(depth + 1) for n in range(self.rng.randrange(4))}
        if self.chance(0.5):
            found["required"] = [name for name in found.get("properties", {}) if self.chance(0.5)]
        if self.chance(0.2):
            found["additionalProperties"] = self.pick(False, True, {"type": "string"})

    def shuffled(self, fields):
        items = list(fields.items())
        self.rng.shuffle(items)
        return dict(items)

    def parameters(self):
        found = self.schema()
        for key in ("oneOf", "anyOf", "allOf", "$ref", "const", "enum", "nullable"):
            found.pop(key, None)
        found["type"] = "object"
        found.setdefault("properties", {"q": self.schema(1)})
        if self.chance(0.1):
            found["$defs"] = {"P": self.schema(2)}
        return found

    def function(self):
        extras = {"description": (0.85, self.text), "parameters": (0.9, self.parameters), "strict": (0.15, lambda: self.pick(True, False, None)), "x": (0.02, lambda: 1)}
        return self.shuffled({"name": self.name()} | {key: make() for key, (share, make) in extras.items() if self.chance(share)})

    def tool(self):
        return self.shuffled({"type": "function", "function": self.function()} | ({"cache_control": {"type": "ephemeral"}} if self.chance(0.03) else {}))

    def parts(self, low=1):
        return [{"type": "text", "text": self.text()} | ({"cache_control": {"type": "ephemeral"}} if self.chance(0.05) else {}) for _ in range(self.rng.randint(low, 3))]

    def odd_content(self, role):
        """Contents that clients send less often, some of which engines refuse."""
        odd = [
            None, [], "", ["A", "B"], ["A", {"type": "text", "text": "B"}], [{"type": "text", "text": ""}], [{"type": "text"}], [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}, *self.parts()],
            [{"type": "input_text", "text": self.text()}], [{"type": "text", "text": None}],
        ]  # fmt: skip
        if role == "assistant":
            odd += [[{"type": "refusal", "refusal": "no"}], [{"type": "thinking", "thinking": self.text()}, *self.parts()], [{"type": "output_text", "text": self.text()}]]
        return self.rng.choice(odd)

    def content(self, role):
        if self.chance(0.04):
            return self.odd_content(role)
        return self.parts() if self.chance(0.2) else self.full_text() if self.is_strict and role == "assistant" else self.text()

    def message(self, role, **fields):
        found = {"role": role, **fields}
        if "content" not in found:
            found["content"] = self.content(role)
        if self.chance(0.08) and role != "tool":
            found["name"] = self.pick("bob", "al", "")
        if role == "assistant" and self.chance(0.2):
            # What the client library of OpenAI sends back of an answer.
            found |= {"refusal": None, "annotations": [], "audio": None, "function_call": None} | ({} if "tool_calls" in found else {"tool_calls": None})
        if self.chance(0.02):
            found["x_unknown"] = self.value()
        if role == "assistant" and self.chance(0.25):
            found[self.pick("reasoning", "reasoning_content")] = self.text()
        return self.shuffled(found) if self.chance(0.2) else found

    def call_id(self):
        self.calls += 1
        return self.pick(f"abcd{self.calls:05}", f"call_{self.calls:08x}abc", f"chatcmpl-tool-{self.calls:06}", *([] if self.is_strict else [""]))

    def arguments(self):
        value = {"city": self.text(), "n": self.value(), "é": self.value(1)}
        texts = [spelled(value), spelled(value, ensure_ascii=False), spelled(value, separators=(",", ":")), spelled(value, indent=2), "{}", '{"b":1.50,"a":[1,{"k":"v \\u00e9 \\/ "}]}']
        odd = ["", '{"city": "Par', spelled(self.value()), "null", " {} ", '{"a":1,"a":2}', '{"a":NaN}', {"city": "Paris"}]
        return self.rng.choice(odd) if self.chance(0.12) else self.rng.choice(texts)

    def called(self):
        """An answer that calls functions, and the results."""
        calls = [{"id": self.call_id(), "type": "function", "function": self.shuffled({"name": self.name(), "arguments": self.arguments()})} for _ in range(self.pick(1, 1, 1, 2))]
        if self.chance(0.05):
            calls[0]["index"] = 0
        answer = self.message("assistant", tool_calls=calls, content=self.pick(None, "", "x", self.full_text(), self.parts()))
        if self.chance(0.3):
            answer.pop("content")
        results = [self.message("tool", tool_call_id=call["id"], content=self.pick(self.text(), spelled(self.value()), self.parts(), self.text())) for call in calls]
        if self.chance(0.2):
            self.rng.shuffle(results)
        for result in results:
            if self.chance(0.2):
                result["name"] = self.name()
        return [answer, *results]

    def conversation(self):
        messages = [self.message(self.pick("system", "system", "developer"))] if self.chance(0.6) else []
        turns = self.rng.randint(1, 4)
        for turn in range(turns):
            messages.append(self.message("user"))
            if self.chance(0.03 if self.is_strict else 0.12):
                messages.append(self.message(self.pick("system", "developer")))
            while self.chance(0.35):
                messages += self.called()
            if turn + 1 < turns and self.chance(0.97 if self.is_strict else 0.9):
                messages.append(self.message("assistant"))
        if self.chance(0.08):
            messages.append(self.message("assistant"))
        return messages

    def chat(self):
        body = {"model": "m", "messages": self.conversation()}
        if self.chance(0.5):
            body["tools"] = [self.tool() for _ in range(self.rng.randint(1, 3))]
        extras = {
            "reasoning_effort": (0.15, lambda: self.pick("low", "medium", "high", "high", "minimal", "none", None, "xhigh")), "tools": (0.04, lambda: self.pick([], None)), "add_generation_prompt": (0.06, lambda: self.pick(False, True)),
            "continue_final_message": (0.04, lambda: self.pick(True, False)), "response_format": (0.08, lambda: self.pick({"type": "json_object"}, {"type": "text"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": self.parameters()}})),
            "tool_choice": (0.08, lambda: self.pick("none", "required", "auto", {"type": "function", "function": {"name": "f"}})), "parallel_tool_calls": (0.05, lambda: self.pick(True, False)),
            "chat_template_kwargs": (0.06, lambda: self.pick({"enable_thinking": False}, {"reasoning_effort": "high"}, {"builtin_tools": ["browser", "python"]}, {"model_identity": "M"}, {})),
            "include_reasoning": (0.03, lambda: False), "temperature": (0.2, lambda: 0), "stream": (0.1, lambda: True), "add_special_tokens": (0.03, lambda: self.pick(True, False)), "documents": (0.02, lambda: [{"text": "d"}]),
        }  # fmt: skip
        return body | {key: make() for key, (share, make) in extras.items() if self.chance(share)}

    def response_item(self, turn):
        rng = self.rng
        if self.chance(0.4):
            thought = [{"type": "reasoning_text", "text": self.text()} for _ in range(rng.randrange(3))]
            yield {"type": "reasoning", "id": f"rs_{turn}", "summary": self.pick([], [{"type": "summary_text", "text": "s"}])} | ({"content": thought} if self.chance(0.8) else {})
        if self.chance(0.5):
            name = self.call_id() or "c"
            yield {"type": "function_call", "id": "fc_1", "call_id": name, "name": self.name(), "arguments": str(self.arguments())} | ({"status": "completed"} if self.chance(0.3) else {})
            yield {"type": "function_call_output", "call_id": name, "output": self.text() if self.chance(0.85) else [{"type": "input_text", "text": self.text()}]}

    def responses(self):
        items = [{"role": self.pick("system", "developer"), "content": self.text()}] if self.chance(0.25) else []
        for turn in range(self.rng.randint(1, 3)):
            content = self.text() if self.chance(0.6) else [{"type": "input_text", "text": self.text()} for _ in range(self.rng.randint(1, 2))]
            items.append({"role": "user", "content": content, **({"type": "message"} if self.chance(0.3) else {})})
            while self.chance(0.4):
                items += self.response_item(turn)
            if self.chance(0.1):
                items.append({"role": self.pick("developer", "system"), "content": self.text()})
            if self.chance(0.4):
                items.append({"role": "assistant", "content": self.text()})
            elif self.chance(0.6):
                texts = [{"type": "output_text", "text": self.text(), "annotations": []} for _ in range(self.rng.randint(1, 2))]
                items.append({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": texts})
        body = {"model": "m", "input": items if self.chance(0.85) else self.text()}
        tools = lambda: self.pick([{"type": "web_search_preview"}], [{"type": "code_interpreter", "container": {"type": "auto"}}], [], [{"type": "mcp", "server_label": "code_interpreter", "server_url": "http://x"}])
        extras = {
            "instructions": (0.5, self.text), "tools": (0.05, tools), "reasoning": (0.3, lambda: {"effort": self.pick("low", "high", "medium", "minimal", None)} | ({"summary": "auto"} if self.chance(0.2) else {})),
            "text": (0.06, lambda: {"format": {"type": "json_schema", "name": "n", "schema": self.parameters()}}), "store": (0.1, lambda: False), "tool_choice": (0.05, lambda: self.pick("auto", "none", "required")),
            "previous_response_id": (0.03, lambda: None), "max_tool_calls": (0.02, lambda: 3), "truncation": (0.03, lambda: "disabled"), "include": (0.05, lambda: ["reasoning.encrypted_content"]),
        }  # fmt: skip
        if self.chance(0.4):
            body["tools"] = [{"type": "function", "strict": None, **self.function()} for _ in range(self.rng.randint(1, 2))]
        return body | {key: make() for key, (share, make) in extras.items() if self.chance(share)}

    def block(self):
        return {"type": "text", "text": self.text()} | ({"cache_control": {"type": "ephemeral"}} if self.chance(0.1) else {})

    def anthropic_call(self):
        name, blocks = self.call_id() or "c", []
        if self.chance(0.4):
            blocks.append({"type": "thinking", "thinking": self.text(), "signature": "s"})
        if self.chance(0.4):
            blocks.append(self.block())
        blocks.append({"type": "tool_use", "id": name, "name": self.name(), "input": self.pick({"p": self.value()}, {}, {"é": "ü"}, {"a": self.value(), "b": self.value()})})
        result = {"type": "tool_result", "tool_use_id": name, "content": self.pick(self.text(), [self.block(), self.block()], [self.block()])}
        if self.chance(0.1):
            result |= self.pick({"is_error": True}, {"content": None}, {"content": []})
        if self.chance(0.05):
            result.pop("content")
        return [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result, *([self.block()] if self.chance(0.3) else [])]}]

    def messages(self):
        found = []
        for _ in range(self.rng.randint(1, 3)):
            found.append({"role": "user", "content": self.text() if self.chance(0.4) else [self.block() for _ in range(self.rng.randint(1, 2))]})
            while self.chance(0.35):
                found += self.anthropic_call()
            if self.chance(0.7):
                thought = {"type": "thinking", "thinking": self.text(), "signature": "s"} if self.chance(0.8) else {"type": "redacted_thinking", "data": "x"}
                found.append({"role": "assistant", "content": self.full_text() if self.chance(0.5) else [thought, self.block()]})
            if self.chance(0.03):
                found.append({"role": "system", "content": self.text()})
        if found[-1]["role"] != "user" and self.chance(0.9):
            found.append({"role": "user", "content": "go"})
        system = lambda: self.text() if self.chance(0.5) else [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, self.block()]
        tools = lambda: [{"name": self.name(), "description": self.text(), "input_schema": self.parameters()} for _ in range(self.rng.randint(1, 2))]
        extras = {
            "system": (0.5, system), "tools": (0.5, tools), "thinking": (0.15, lambda: self.pick({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"})),
            "tool_choice": (0.08, lambda: self.pick({"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "f"})), "metadata": (0.05, lambda: {"user_id": "u"}), "stream": (0.1, lambda: True),
        }  # fmt: skip
        return {"model": "m", "max_tokens": 8, "messages": found} | {key: make() for key, (share, make) in extras.items() if self.chance(share)}

    def body(self, api):
        """The JSON text of a body."""
        made = getattr(self, api)()
        is_ascii = self.chance(0.7)
        text = spelled(made, ensure_ascii=is_ascii)
        if any(0xD800 <= ord(letter) < 0xE000 for letter in text):
            text = spelled(made)
        if self.chance(0.01):
            text = text.replace('"content": ', '"content": "twice", "content": ', 1)
        return text
