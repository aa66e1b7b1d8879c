#!/usr/bin/env python3
"""Official clients over TLS and with API keys: OpenAI and Anthropic for Python, OpenAI for Node, and openssl.

usage: tools/front_door.py      needs the packages of tools/ci/clients (tools/ci/40-openai)
env:   FOREBAY   program under test, default target/dist/forebay
"""

import json
import os
import subprocess
import sys
import tempfile

from rig import ROOT, Missing, Rig, Score, binary, certificate, free_ports, get

try:
    import anthropic
    import openai
except ImportError as error:
    raise Missing("a package is missing: run tools/ci/40-openai") from error

CHAT = [{"role": "user", "content": "Say hello."}]
NODE_REQUESTS = 10


def run(*argv, **options):
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, **options)


def key(folder, *flags):
    made = run(binary(), "key", "add", "--file", f"{folder}/keys.toml", *flags)
    if made.returncode:
        raise SystemExit(f"forebay key add: {made.stderr}")
    return made.stdout.split()[-1]


def raised(call):
    """Name of the exception that a call raised, or what it returned."""
    try:
        return f"no exception, but {call()}"
    except (openai.OpenAIError, anthropic.AnthropicError) as error:
        return type(error).__name__


def with_openai(score, url, keys):
    def client(shown):
        return openai.OpenAI(base_url=f"{url}/v1", api_key=shown, max_retries=0)

    def ask(shown):
        return client(shown).chat.completions.create(model="tiny", messages=CHAT, max_tokens=4).choices[0].message.content

    stream = client(keys["good"]).chat.completions.create(model="tiny", messages=CHAT, max_tokens=6, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    score.check("openai: answer and stream", ask(keys["good"]) and text, text)
    score.check("openai: a key of another model", raised(lambda: ask(keys["other"])) == "PermissionDeniedError")
    score.check("openai: an unknown key", raised(lambda: ask("sk-unknown")) == "AuthenticationError")
    listed = [[model.id for model in client(keys[name]).models.list()] for name in ("good", "other")]
    score.check("openai: models of a key", listed == [["tiny"], []], listed)


def with_anthropic(score, url, keys):
    def ask(shown):
        client = anthropic.Anthropic(base_url=url, api_key=shown, max_retries=0)
        return client.messages.create(model="tiny", messages=CHAT, max_tokens=4).content[0].text

    # The simulated engine has no such path, and says so.
    score.check("anthropic: a key that may", raised(lambda: ask(keys["good"])) == "NotFoundError")
    score.check("anthropic: a key of another model", raised(lambda: ask(keys["other"])) == "PermissionDeniedError")
    score.check("anthropic: an unknown key", raised(lambda: ask("sk-unknown")) == "AuthenticationError")


def with_node(score, url, certificate_file, shown):
    env = {**os.environ, "NODE_EXTRA_CA_CERTS": certificate_file, "FOREBAY_KEY": shown}
    done = run("node", os.path.join(ROOT, "tools", "openai_client.mjs"), f"{url}/v1", str(NODE_REQUESTS), env=env)
    found = json.loads(done.stdout or "{}")
    score.check("openai for Node: answers and streams", found.get("answered") == NODE_REQUESTS, found.get("faults") or done.stderr[-300:])


def with_openssl(score, port, certificate_file):
    for version in ("-tls1_2", "-tls1_3"):
        words = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-servername", "localhost", "-CAfile", certificate_file, "-alpn", "http/1.1", version]
        said = run(*words, input="GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").stdout
        good = "Verify return code: 0 (ok)" in said and "ALPN protocol: http/1.1" in said
        score.check(f"openssl s_client {version}: verified", good, "" if good else said[-400:])
    old = run("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_1", "-cipher", "ALL@SECLEVEL=0", input="")
    score.check("openssl s_client -tls1_1: refused", old.returncode != 0)


def main():
    score = Score()
    with tempfile.TemporaryDirectory() as folder, Rig() as rig:
        certificate_file, key_file = certificate(folder)
        engine = rig.engine("--model", "tiny")
        keys = {"good": key(folder, "--tenant", "a"), "other": key(folder, "--tenant", "b", "--models", "another")}
        listen, admin = free_ports(2)
        argv = [binary(), "serve", "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}", "--worker", engine.url]
        argv += ["--tls-cert", certificate_file, "--tls-key", key_file, "--api-keys", f"{folder}/keys.toml"]
        rig.start("front-door", argv).wait_for("/readyz", lambda: get(f"http://127.0.0.1:{admin}/readyz")[0] == 200)
        url = f"https://localhost:{listen}"
        # Where both packages look for whom to trust.
        os.environ["SSL_CERT_FILE"] = certificate_file
        with_openai(score, url, keys)
        with_anthropic(score, url, keys)
        with_node(score, url, certificate_file, keys["good"])
        with_openssl(score, listen, certificate_file)
        with open(f"{folder}/keys.toml", encoding="utf-8") as file:
            text = file.read()
        score.check("the file holds no key", not any(shown in text for shown in keys.values()))
    print(f"{score.passed} passed, {score.failed} failed")
    return 1 if score.failed else 0


if __name__ == "__main__":
    sys.exit(main())
