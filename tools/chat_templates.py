#!/usr/bin/env python3
"""Expected prompts of tests/data/chat_templates: what the engines make of every case with every template.

Requests are prepared here as vLLM 0.33 and SGLang 0.5.23 prepare them (own words, after reading them) and rendered by
transformers itself, the library both engines call. `templates.json` says what content each engine takes a template to
want (`string` or `openai`: the list of parts), as the engines' own detection answers. Dates are left as their format between
U+FDD0 and U+FDD1. A prompt that the template refuses is null; SGLang's is left out where it is the same as vLLM's.

usage: python3 -m venv target/venv-templates
       target/venv-templates/bin/pip install transformers==5.19.0 jinja2==3.1.6
       target/venv-templates/bin/python tools/chat_templates.py [DIRECTORY] [--check]
"""

import argparse
import copy
import json
import pathlib
import sys

import transformers
import transformers.utils.chat_template_utils as chat_template_utils
from tokenizers import Tokenizer, models

DIRECTORY = pathlib.Path(__file__).parent.parent / "tests/data/chat_templates"


class MarkedDate:
    """Stands in for `datetime`: the date is its format between marks."""

    @staticmethod
    def now():
        return MarkedDate

    @staticmethod
    def strftime(form):
        return f"\ufdd0{form}\ufdd1"


def text_of(part):
    return part if isinstance(part, str) else part.get("text")


# vLLM: vllm/renderers/chat_utils, vllm/entrypoints/openai/chat_completion


def vllm_call(call):
    """The keys of the request class, in its order."""
    function = {"arguments": json.loads(call["function"]["arguments"] or "{}"), "name": call["function"]["name"]}
    shaped = {"id": call.get("id"), "function": function, "type": call.get("type")}
    return {key: value for key, value in shaped.items() if value is not None}


def vllm_message(message, content_format):
    role, content = message["role"], message.get("content")
    parts = [] if content is None else [content] if isinstance(content, str) else content
    texts = [text_of(part) for part in parts]
    if content_format == "openai":
        shaped = {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
    else:
        shaped = {"role": role, "content": "\n".join(text for text in texts if text)}
    if role == "assistant":
        calls = copy.deepcopy(message.get("tool_calls"))
        if calls:
            shaped["tool_calls"] = [vllm_call(call) for call in calls]
        if message.get("reasoning_content") is not None:
            shaped["reasoning"] = shaped["reasoning_content"] = message["reasoning_content"]
    if role == "tool":
        shaped["tool_call_id"] = message["tool_call_id"]
        if content_format == "openai":
            shaped["content"] = "\n".join(texts)
    if role == "developer":
        shaped["tools"] = message.get("tools")
    return shaped


def all_text(content):
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def settle_developers(messages, source):
    """A template that does not know developers gets system messages, and then one of them, at the front."""
    if "'developer'" in source or '"developer"' in source or all(m["role"] != "developer" for m in messages):
        return messages
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"
            del message["tools"]
    if all(message["role"] != "system" for message in messages[1:]):
        return messages
    texts = [all_text(message["content"]) for message in messages if message["role"] == "system"]
    system = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [system] + [message for message in messages if message["role"] != "system"]


def vllm_tool(tool):
    function = tool["function"]
    shaped = {key: function.get(key) for key in ("name", "description", "parameters")}
    return {"type": tool["type"], "function": shaped}


def as_vllm(body, source, content_format):
    messages = [vllm_message(message, content_format) for message in body["messages"]]
    arguments = dict(body.get("chat_template_kwargs", {}))
    arguments["add_generation_prompt"] = body.get("add_generation_prompt", True)
    arguments["continue_final_message"] = body.get("continue_final_message", False)
    arguments["documents"] = body.get("documents")
    if (effort := body.get("reasoning_effort")) is not None:
        arguments.setdefault("enable_thinking", effort != "none")
        arguments["reasoning_effort"] = effort
    tools = [vllm_tool(tool) for tool in body["tools"]] if body.get("tools") else None
    return settle_developers(messages, source), tools, arguments


# SGLang: sglang/srt/entrypoints/openai, sglang/srt/parser/jinja_template_utils


def sglang_call(call):
    function = call["function"]
    arguments = json.loads(function["arguments"])  # what is no JSON object is refused
    shaped = {"name": function["name"], "arguments": arguments}
    return {"id": call.get("id"), "index": call.get("index"), "type": "function", "function": shaped}


def sglang_message(message, content_format):
    role, content = message["role"], message.get("content")
    content = "" if content is None else content
    if isinstance(content, list):
        if content_format == "openai":
            content = [{"type": "text", "text": part["text"]} for part in content]
        else:
            content = " ".join(part["text"] for part in content)
    if role == "tool" and isinstance(content, list):
        content = " ".join(part["text"] for part in content)
    shaped = {"role": role, "content": content}
    if role != "user":
        for key in ("tool_call_id", "name", "reasoning_content"):
            if message.get(key) is not None:
                shaped[key] = message[key]
        if message.get("tool_calls") is not None:
            shaped["tool_calls"] = [sglang_call(call) for call in message["tool_calls"]]
    return shaped


def sglang_tool(tool):
    known = ("description", "name", "parameters")
    shaped = {key: value for key, value in tool["function"].items() if key in known}
    for key in known:
        shaped.setdefault(key, None)
    return {"type": tool["type"], "function": shaped, "defer_loading": None}


def as_sglang(body, content_format):
    messages = [sglang_message(message, content_format) for message in body["messages"]]
    ending = ""
    if messages[-1]["role"] == "assistant" and isinstance(messages[-1]["content"], str):
        last = messages.pop()
        if body.get("continue_final_message"):
            ending = last["content"]
        else:
            messages.append({"role": "user", "content": last["content"]})
    arguments = {}
    given = dict(body.get("chat_template_kwargs", {}))
    effort = body.get("reasoning_effort")
    if effort is not None:
        arguments["reasoning_effort"] = effort
        given.setdefault("thinking", effort != "none")
        given.setdefault("enable_thinking", effort != "none")
    arguments.update(given)
    arguments["add_generation_prompt"] = True
    tools = [sglang_tool(tool) for tool in body["tools"]] if body.get("tools") else None
    return messages, tools, arguments, ending


class Template:
    """A template in a tokenizer of transformers."""

    def __init__(self, directory, name, known):
        self.source = (directory / f"{name}.jinja").read_bytes().decode()
        self.content = known["content"]
        self.content_sglang = known.get("content_sglang", self.content)
        self.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.BPE()), chat_template=self.source, **known["special"]
        )

    def render(self, messages, tools, arguments):
        return self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **arguments)

    def vllm(self, body):
        try:
            return self.render(*as_vllm(body, self.source, self.content))
        except Exception:  # whatever a template raises, engines answer 400
            return None

    def sglang(self, body):
        try:
            messages, tools, arguments, ending = as_sglang(body, self.content_sglang)
            try:
                prompt = self.render(messages, tools, arguments)
            except Exception:
                tools = [tool["function"] for tool in tools] if tools else None
                prompt = self.render(messages, tools, arguments)
        except Exception:
            return None
        return prompt + ending


def golden(template, cases):
    lines = []
    for case in cases:
        vllm, sglang = template.vllm(case["body"]), template.sglang(case["body"])
        line = {"case": case["name"], "vllm": vllm}
        if sglang != vllm:
            line["sglang"] = sglang
        lines.append(json.dumps(line, ensure_ascii=False).replace("\u2028", "\\u2028"))
    return "\n".join(lines) + "\n"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("directory", nargs="?", type=pathlib.Path, default=DIRECTORY)
    options.add_argument("--check", action="store_true", help="write nothing, fail where files differ")
    given = options.parse_args()
    chat_template_utils.datetime = MarkedDate
    cases = json.loads((given.directory / "cases.json").read_text(encoding="utf-8"))
    templates = json.loads((given.directory / "templates.json").read_text(encoding="utf-8"))
    differing = []
    for name, known in templates.items():
        path = given.directory / f"{name}.jsonl"
        text = golden(Template(given.directory, name, known), cases)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            differing.append(name)
            if not given.check:
                path.write_text(text, encoding="utf-8")
    print(f"{len(templates)} templates, {len(cases)} cases; {'differ' if given.check else 'written'}: {differing or 'none'}")
    return 1 if given.check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
