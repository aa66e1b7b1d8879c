"""Prompts of vLLM's own encoders: reads cases, writes prompts, both a JSON object a line. Runs in an environment with vLLM.

A case has `api` and `body` (JSON text). An answer has `text`, or `error` where vLLM refuses the body, and `spells` where ordinary
text of the prompt has the letters of a special token.

usage: encoder_truth.py harmony | encoder_truth.py mistral MODEL_DIR
       encoder_truth.py tekken VERSION_JSON MODEL_DIR     (makes a model of Mistral's for this: vocabulary of mistral_common)
"""

import json
import logging
import os
import re
import struct
import sys

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
logging.disable(logging.CRITICAL)


def anthropic_as_chat(body, disabled_effort):
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    convert = AnthropicServingMessages.to_chat_completion_request
    return convert(AnthropicMessagesRequest(**body), merge_inline_system=True, disabled_thinking_effort=disabled_effort)


class Harmony:
    """vLLM's renderer of gpt-oss, without a model."""

    def __init__(self):
        import vllm.renderers.online_renderer as online
        from vllm.entrypoints.openai.parser import harmony_utils

        self.encoding = harmony_utils.get_encoding()
        self.specials = sorted(self.encoding.special_tokens_set)
        self.renderer = online.OnlineRenderer.__new__(online.OnlineRenderer)
        self.renderer.renderer = type("NoTokenizer", (), {"tokenizer": None})()
        self.renderer.model_config = type("Model", (), {"max_model_len": 131_072})()
        self.renderer.parser = None
        self.renderer.supports_browsing = self.renderer.supports_code_interpreter = False
        self.renderer.exclude_tools_when_tool_choice_none = False
        online._reused_prompt_token_ids = lambda *_, **__: None
        online.tokens_input = lambda ids, cache_salt=None: {"prompt_token_ids": ids}

    def ids(self, api, body):
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

        if api == "responses":
            ResponsesRequest.build_tok_params = lambda *_: None
            made = self.renderer._render_responses_with_harmony(
                ResponsesRequest(**body), previous_messages=None, previous_response_outputs=None, tool_server=None
            )
            if not hasattr(made, "engine_input"):
                raise ValueError(made)
            return made.engine_input["prompt_token_ids"]
        asked = anthropic_as_chat(body, "low") if api == "messages" else ChatCompletionRequest(**body)
        return self.renderer._make_request_with_harmony(asked, asked.tools is not None)[1][0]["prompt_token_ids"]

    def prompt(self, api, body):
        ids = self.ids(api, body)
        return self.encoding.decode_utf8(ids), sum(self.encoding.is_special_token(token) for token in ids)


class Mistral:
    """vLLM's renderer of Mistral's tokenizers."""

    def __init__(self, folder):
        from vllm.config import ModelConfig
        from vllm.renderers.mistral import MistralRenderer
        from vllm.tokenizers.mistral import MistralTokenizer

        tokenizer = MistralTokenizer.from_pretrained(folder)
        self.tekken = tokenizer.tokenizer
        self.specials = sorted({self.tekken.id_to_piece(token) for token in range(self.tekken.num_special_tokens)})
        self.renderer = MistralRenderer.__new__(MistralRenderer)
        self.renderer.model_config = ModelConfig(
            model=folder, tokenizer=folder, tokenizer_mode="mistral", config_format="hf", dtype="float32", max_model_len=131_072, skip_tokenizer_init=True
        )  # fmt: skip
        self.renderer.tokenizer = tokenizer
        self.renderer.get_tokenizer = lambda: tokenizer
        builder = getattr(tokenizer.instruct, "model_settings_builder", None) or getattr(self.tekken, "model_settings_builder", None)
        self.disabled_effort = "none" if builder is not None and "none" in str(builder) else "low"

    def prompt(self, api, body):
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.renderers import merge_kwargs
        from vllm.utils.mistral import mt

        asked = anthropic_as_chat(body, self.disabled_effort) if api == "messages" else ChatCompletionRequest(**body)
        mt.maybe_serialize_tool_calls(asked)
        mt.truncate_tool_call_ids(asked)
        mt.validate_request_params(asked)
        tools = None if asked.tools is None else [tool.model_dump() for tool in asked.tools]
        params = asked.build_chat_params(None, "auto").with_defaults(merge_kwargs(None, {"tools": tools, "tokenize": True}))
        ids = self.renderer.render_messages(asked.messages, params)[1]["prompt_token_ids"]
        special = self.tekken.is_special
        text = b"".join(self.tekken.id_to_piece(token).encode() if special(token) else self.tekken.id_to_byte_piece(token) for token in ids)
        return text.decode("utf-8"), sum(map(special, ids))


def make_tekken(version_json, folder):
    """A model directory with a whole vocabulary and the special tokens of a version."""
    import mistral_common

    with open(os.path.join(os.path.dirname(mistral_common.__file__), "data/tekken_240718.json"), encoding="utf-8") as file:
        whole = json.load(file)
    with open(version_json, encoding="utf-8") as file:
        version = json.load(file)
    whole["config"] |= version.pop("config")
    specials = version.pop("special_tokens", None)
    if specials:
        whole["special_tokens"] = [{"rank": rank, "token_str": token["token_str"], "is_control": True} for rank, token in enumerate(specials)]
    os.makedirs(folder, exist_ok=True)
    config = {
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1,
        "intermediate_size": 64, "vocab_size": 131_072, "max_position_embeddings": 131_072,
    }  # fmt: skip
    for name, value in (("tekken.json", whole | version), ("config.json", config)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file)
    with open(os.path.join(folder, "consolidated.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", 2) + b"{}")


def answer(encoder, spelled, case):
    try:
        text, special_count = encoder.prompt(case["api"], json.loads(case["body"]))
    except Exception as error:  # any refusal of vLLM's, of its request classes and of the libraries below
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"text": text, "spells": len(spelled.findall(text)) != special_count}


def main():
    if sys.argv[1] == "tekken":
        return make_tekken(*sys.argv[2:4])
    encoder = Harmony() if sys.argv[1] == "harmony" else Mistral(sys.argv[2])
    spelled = re.compile("|".join(map(re.escape, sorted(encoder.specials, key=len, reverse=True))))
    print(json.dumps({"specials": encoder.specials}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(encoder, spelled, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
