#!/usr/bin/env python3
"""Makes tokenizer.json beside this file: a small byte-level BPE for tests and for the simulated engine.

Needs the `tokenizers` package. The text it learns from is generated below from a fixed seed, so the
result is the same every time: `python3 make.py`.
"""

import json
import pathlib
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

NOUNS = """answer question river mountain window kitchen teacher student doctor engine router worker request
response memory cache block token prefix server client network packet kernel thread shard index table
queue message buffer socket window market country language history science music picture garden animal
winter summer morning evening problem solution machine computer program function variable string number
letter paper book story person family friend child mother father brother sister company product service
customer order price value result reason example idea world people water light house street city station
train ship plane vehicle bridge road map image sound color chair door wall floor roof user assistant system
instruction conversation template character sentence paragraph keyboard telephone mountain umbrella butterfly
elephant knowledge temperature government university restaurant hospital newspaper photograph adventure
scientist experiment hypothesis equation triangle rectangle algorithm database schedule latency throughput
bandwidth accelerator scheduler checkpoint gradient parameter attention transformer embedding vocabulary""".split()
VERBS = """answers asks builds carries changes checks closes compares computes connects copies counts creates
decides describes divides draws explains finds follows gives grows holds keeps knows learns leaves lists
listens makes measures moves needs opens orders paints plans prints reads receives remembers removes returns
routes runs says searches sees sends shows sings sorts starts stops stores takes teaches tells thinks turns
understands updates uses walks watches works writes""".split()
ADJECTIVES = """able ancient bright broken careful cheap clear cold common correct curious deep different early
empty equal famous fast final first foreign formal free fresh full gentle global good great happy hard heavy
hidden important large last late light local long modern narrow natural new next old open perfect plain
possible private public quick quiet rare ready real recent rich safe short silent simple single slow small
smart soft special stable strong sudden sweet tall thick thin tiny true unique usual useful various warm weak
wide wild wonderful wrong young""".split()
ADVERBS = """again almost already always carefully certainly clearly directly early easily finally first
gladly hardly honestly however immediately instead later maybe meanwhile mostly nearly never nowadays often
once only perhaps probably quickly quietly rarely really recently simply slowly sometimes soon still suddenly
then therefore together tomorrow twice usually well yesterday""".split()
JOINTS = ["and", "but", "because", "while", "although", "so", "when", "before", "after", "if", "unless", "until"]
PHRASES = [
    "You are a helpful assistant.", "Please explain step by step.", "I don't know, but I'll find out.",
    "What is the capital of this country?", "Write a short story about it.", "Here's an example:",
    "Let's think about that for a moment.", "Thank you very much!", "Could you translate the following text?",
    "Summarize the conversation so far in three sentences.", "The answer is 42.", "It's not what we'd expect.",
    "Sure! Here is what you asked for:", "As far as I can tell, that's correct.", "They've been there; we're late.",
]
OTHER = [
    "Käse, Straße, über, größer, schön, Mädchen, fünf Äpfel", "été, garçon, où, déjà, naïve, cœur, ça va",
    "mañana, niño, corazón, ¿qué tal?, ¡hola!", "привет, как дела, хорошо, спасибо, вопрос, ответ",
    "你好，世界。今天天气很好，我们去公园。", "今日はいい天気ですね。ありがとうございます。", "안녕하세요, 감사합니다",
    "مرحبا كيف حالك", "שלום עולם", "नमस्ते दुनिया", "😀 😂 👍 🎉 🚀 ❤️ 👩‍💻 ✓ → … – “quoted” ‘text’ €5",
]
CODE = [
    "def {a}_{b}(self, {c}):\n    if {c} is None:\n        return []\n    for i in range(len({c})):\n        print({c}[i])\n    return {c}\n",
    "fn {a}_{b}({c}: &mut Vec<u8>) -> Result<usize, Error> {{\n    let {b} = {c}.len();\n    match {b} {{\n        0 => Ok(0),\n        _ => Err(Error::new(\"{a}\")),\n    }}\n}}\n",
    "const {a} = async ({b}) => {{\n  const {c} = await fetch(`/api/${{{b}}}`);\n  return {c}.json();\n}};\n",
    "SELECT {a}, COUNT(*) FROM {b} WHERE {c} > 10 GROUP BY {a} ORDER BY {a} DESC;\n",
    "{{\"name\": \"{a}\", \"type\": \"object\", \"properties\": {{\"{b}\": {{\"type\": \"string\", \"description\": \"The {c}\"}}}}, \"required\": [\"{b}\"]}}\n",
    "<div class=\"{a}\">\n\t<p>{b}</p>\n\t<a href=\"https://example.com/{c}\">{c}</a>\n</div>\n",
    "# {a}\n\n* {b}\n* {c}\n\n```python\nimport {a}\n```\n", "#include <{a}.h>\nint main(void) {{ return {b}({c}); }}\n",
]


def sentence(rng):
    """One sentence of the small grammar."""
    clause = lambda: " ".join(filter(None, [
        rng.choice(["the", "a", "every", "this", "that", "our", "their", "no", "some", "one"]),
        rng.choice(ADJECTIVES) if rng.random() < 0.6 else "", rng.choice(NOUNS),
        rng.choice(ADVERBS) if rng.random() < 0.4 else "", rng.choice(VERBS),
        rng.choice(["the", "a", "its", "my", "your", "another", "each"]),
        rng.choice(ADJECTIVES) if rng.random() < 0.4 else "", rng.choice(NOUNS),
        rng.choice(["in", "of", "with", "from", "under", "near", "without", "about"]) + " the " + rng.choice(NOUNS)
        if rng.random() < 0.4 else ""]))
    text = clause()
    if rng.random() < 0.5:
        text += rng.choice([", ", " "]) + rng.choice(JOINTS) + " " + clause()
    return text[0].upper() + text[1:] + rng.choice([".", ".", ".", "?", "!", ":"])


def corpus():
    """The text, as documents."""
    rng = random.Random(7)
    for _ in range(2500):
        parts = []
        for _ in range(rng.randint(2, 6)):
            draw = rng.random()
            if draw < 0.6:
                parts.append(sentence(rng))
            elif draw < 0.75:
                parts.append(rng.choice(PHRASES))
            elif draw < 0.85:
                a, b, c = rng.sample(NOUNS, 3)
                parts.append("\n" + rng.choice(CODE).format(a=a, b=b, c=c))
            elif draw < 0.93:
                parts.append(rng.choice(OTHER))
            else:
                parts.append(str(rng.randint(0, 10 ** rng.randint(1, 6))))
        yield rng.choice([" ", " ", "\n", "\n\n"]).join(parts)


def main():
    """Trains and writes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        min_frequency=2)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(SPECIAL)
    (HERE / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    config = {
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 32768,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": (HERE / "chat_template.txt").read_text(encoding="utf-8"),
    }
    text = json.dumps(config, ensure_ascii=False, indent=2)
    (HERE / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
