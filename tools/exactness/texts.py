"""Prompt pairs that share a beginning: texts of many kinds, cut at any character."""

import inspect
import random
import sys
import unicodedata

PHRASES = {
    "cjk": [
        "请解释这段代码的作用，并指出其中的错误。", "今天天气很好，我们去公园散步吧！", "深度学习模型需要大量的数据和计算资源。",
        "東京の天気予報を教えてください。", "これはとても長い文章の一部です。", "カタカナとひらがなと漢字が混ざっている。",
        "한국어 문장도 시험해 봅시다.", "서울은 대한민국의 수도입니다.", "𠮷野家で𩸽を食べる", "ＦＵＬＬ　ｗｉｄｔｈ１２３",
    ],
    "scripts": [
        "Привет, как дела? ", "Быстрая коричневая лиса прыгает. ", "مرحبا بالعالم، كيف حالك؟ ", "שלום עולם ", "नमस्ते दुनिया, आप कैसे हैं? ",
        "สวัสดีชาวโลก วันนี้อากาศดี ", "Γειά σου Κόσμε ", "Xin chào thế giới, tiếng Việt có dấu. ", "ქართული ენა ", "தமிழ் மொழி ", "naïve café Zürich ",
    ],
    "emoji": ["😀", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "1️⃣", "🧑🏿‍🚀", "☕", "✈️ ", "🤷‍♀️ "],
    "spaces": [
        " ", "  ", "    ", "\n", "\n\n", "\n\n\n\n", "\t", "\t\t", "\r\n", " \n ", "        ", "\u00a0", "\u3000", "\u2003\u2009", "\u200b",
        "\x0b", "\x0c", " \t ", "                 ", "x", "end.", "\u2028", "-",
    ],
    "digits": ["0", "1", "42", "007", "1234567890", "3.14159", "1,000,000", "2026-11-21", "0xdeadbeef", "-17", "1e-9", "٣٤", "½", "²³", " ", ":", "\n"],
    "special": [
        "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<bos>", "<|eot_id|>", "<|begin_of_text|>", "<start_of_turn>", "<end_of_turn>",
        "<|endoftext|>", "<think>", "</think>", "<|start_header_id|>", "<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>", "<|channel|>",
        "<|message|>", "<|end|>", "<pad>", "<tool_call>", "[INST]", "user\n", " hello ", "\n", " ", "<", "|>", "<|", "im_end", "▁", "<0x0A>",
    ],
    "odd": [
        "\x00", "\x01", "\x7f", "\ufeff", "\u200d", "\u202e", "\ufffd", "\ue000", "e", "\u0301", "Å", "ﬁ", "①", "𝒳", "𐍈", "\U000e0041", "ß", "İ", "ǆ", "a",
        " ", "'s", "don't", "I'LL", "``", "“quoted”", "…", "—",
    ],
}  # fmt: skip
# Beginnings of accents and syllables that are written apart: rewritten by tokenizers that normalize to NFC.
DECOMPOSED = ["Zu\u0308rich ", "cafe\u0301 ", "\u1112\u1161\u11ab\u1100\u1173\u11af ", "n\u0303 ", "plain "]


def sources():
    """English and code, as people write them: the sources of Python's own library."""
    modules = "argparse ast asyncio.events collections csv dataclasses datetime decimal difflib email.message functools heapq html.parser http.client inspect json.decoder logging pathlib pickle random re shutil statistics string subprocess tarfile textwrap threading typing unittest.case urllib.parse uuid zipfile"
    texts = []
    for name in modules.split():
        __import__(name)
        texts.append(inspect.getsource(sys.modules[name]))
    return texts


class Texts:
    def __init__(self, seed, length):
        self.rng = random.Random(seed)
        self.length = length
        self.code = sources()

    def of_kind(self, kind, length):
        if kind == "code":
            text = self.rng.choice(self.code)
            start = self.rng.randrange(max(1, len(text) - length))
            return text[start : start + length]
        if kind == "mixed":
            text = ""
            while len(text) < length:
                text += self.of_kind(self.rng.choice(["code", *PHRASES]), self.rng.randint(1, 120))
            return text[:length]
        text = ""
        phrases = DECOMPOSED if kind == "decomposed" else PHRASES[kind]
        while len(text) < length:
            text += self.rng.choice(phrases)
        return text[:length]

    def pair(self, kind):
        """Two prompts: the second is the first cut short, gone on with, or otherwise from some character on."""
        rng = self.rng
        first = self.of_kind(kind, rng.randint(self.length // 4, self.length))
        cut = rng.randint(1, len(first))
        tail = self.of_kind(rng.choice([kind, "mixed", "code"]), rng.randint(1, self.length // 2))
        shape = rng.choice(["short", "long", "other", "other", "other", "swapped"])
        if shape == "short":
            second = first[:cut]
        elif shape == "long":
            second = first + tail
        elif shape == "swapped":
            second = first[: cut - 1] + rng.choice(["x", " ", "\n", "é", "中", "😀", "."]) + first[cut:]
        else:
            second = first[:cut] + tail
        return first, second


KINDS = ["code", "code", "mixed", "mixed", *PHRASES, "decomposed"]


def pairs(count, seed, length):
    texts = Texts(seed, length)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        first, second = texts.pair(kind)
        nfc = all(unicodedata.is_normalized("NFC", text) for text in (first, second))
        yield {"kind": kind if nfc or kind == "decomposed" else f"{kind}, not NFC", "first": first, "second": second}
