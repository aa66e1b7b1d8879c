"""A real vLLM against the router: what was predicted for each request, and what the engine found in its cache."""

import concurrent.futures
import contextlib
import gzip
import json
import os
import random
import signal
import time

import rig
from engines import vllm_server
from engines.image_traffic import ImageTraffic
from engines.overlap import Errors, blocks, entries, expected, follows, settle, wait_for
from engines.radix_check import replayed_exactly
from engines.traffic import Traffic
from engines.vllm_server import BLOCK_TOKENS, Vllm, cached_tokens, post

TOKENIZER = os.path.join(rig.ROOT, "tests", "data", "tokenizer")


@contextlib.contextmanager
def fleet(config, ranks, kv_blocks, context_tokens, folder=None, flags=(), router_flags=()):
    """(engine, start a router) with everything ended at the end."""
    with rig.Rig() as started:
        engine = Vllm(started, config, ranks, kv_blocks, context_tokens, folder=folder, flags=flags)

        def router():
            running = started.router([engine.url], "--model-dir", folder or TOKENIZER, *router_flags)
            wait_for("events", lambda: follows(running.admin, ranks))
            return running

        try:
            engine.wait()
            yield engine, router
        finally:
            with contextlib.suppress(ProcessLookupError):
                engine.kill()


def ask(router, request):
    """(what the answer's headers predicted or None, rank, cached tokens) of one request through the router."""
    path, body = request
    answer, headers = post(router.url + path, body)
    predicted = headers.get("x-forebay-overlap-tokens")
    rank = (headers.get("x-forebay-worker") or "").partition("/")[2]
    return None if predicted is None else int(predicted), int(rank or 0), cached_tokens(answer["usage"])


class Truth:
    """Requests one after the other with the events recorded beside: what a test can check again without the engine."""

    def __init__(self, engine, folder, name):
        self.engine = engine
        self.path = os.path.join(folder, f"{name}.kvrec")
        self.rows = []
        argv = [rig.binary(), "record", "--out", self.path]
        for rank in range(engine.ranks):
            argv += ["--from", f"tcp://127.0.0.1:{engine.events + rank}"]
        self.recording = engine.rig.start("record", argv)
        self.recording.wait_for("the recording", lambda: self.recording.log_text().count("recording") >= engine.ranks)
        time.sleep(1.5)

    def row(self, at_ns, request, rank, cached):
        path, body = request
        words = " ".join(str(token) for token in self.engine.tokens(path, body))
        self.rows.append(f"{at_ns}\t{rank}\t{cached}\t{body.get('cache_salt', '')}\t{words}\n")

    def end(self):
        self.recording.child.send_signal(signal.SIGINT)
        self.recording.child.wait(30)
        with gzip.GzipFile(self.path.replace(".kvrec", ".requests.gz"), "wb", mtime=0) as out:
            out.write("".join(self.rows).encode())


def one_by_one(router, traffic, count, truth):
    """Requests that see all events of those before them."""
    errors, by_rank = Errors(), [0] * truth.engine.ranks
    for _ in range(count):
        request = traffic.draw()
        settle(router.admin, 0.15)
        at_ns = time.time_ns()
        predicted, rank, cached = ask(router, request)
        by_rank[rank] += 1
        truth.row(at_ns, request, rank, cached)
        if predicted is not None:
            errors.add(predicted, cached, BLOCK_TOKENS)
        if predicted is not None and predicted < cached:
            print(f"  rank {rank} at {at_ns}: predicted {predicted}, found {cached}")
    return errors, by_rank


def at_once(router, traffic, count):
    requests, errors, by_rank = [traffic.draw() for _ in range(count)], Errors(), {}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for predicted, rank, cached in pool.map(lambda request: ask(router, request), requests):
            by_rank[rank] = by_rank.get(rank, 0) + 1
            if predicted is not None:
                errors.add(predicted, cached, BLOCK_TOKENS)
    return errors, by_rank


def ghosts(router, engine, traffic, count, seed):
    """Earlier requests again, past the router, each on a rank it may never have been on: expected against found."""
    errors, draw = Errors(), random.Random(seed)
    for path, body in draw.sample(traffic.past, min(count, len(traffic.past))):
        settle(router.admin)
        rank = draw.randrange(engine.ranks)
        said = expected(router.admin, path, body)[rank]
        found = engine.ask(path, {**body, "max_tokens": 1}, rank)
        errors.add(said, found, BLOCK_TOKENS)
        if abs(said - found) > BLOCK_TOKENS:
            print(f"  rank {rank}: expected {said}, found {found}: {path} {json.dumps(body)[:400]}")
    return errors


class ImageTruth(Truth):
    """The same with the bodies, as clients send them: what stands for an image is known to the router alone."""

    def row(self, at_ns, request, rank, cached):
        self.rows.append(f"{at_ns}\t{rank}\t{cached}\t{json.dumps(request[1], separators=(',', ':'))}\n")

    def end(self):
        super().end()
        path = self.path.replace(".kvrec", "")
        os.rename(f"{path}.requests.gz", f"{path}.chats.gz")


def removed_count(router):
    return rig.total(f"{router.admin}/metrics", "forebay_kv_events_total", kind="removed", result="applied")


def check_ranks(given, score):
    with fleet(vllm_server.LLAMA, 2, 96, 1024) as (engine, start_router):
        router, traffic = start_router(), Traffic(seed=11)
        before = engine.served()
        truth = Truth(engine, given.captures, "vllm-0.32.0-dp2")
        errors, by_rank = one_by_one(router, traffic, given.chats, truth)
        truth.end()
        print(f"vllm dp=2, one by one: predicted minus cached, in blocks: {errors}; by rank {by_rank}; {removed_count(router):.0f} removals")
        score.check("vllm: a prediction for all but the first few", sum(errors.counts.values()) >= given.chats - 4, errors)
        score.check("vllm: one by one, every prediction right", errors.right(), errors)
        good, why = replayed_exactly(given.captures)
        score.check("vllm: the recording gives the same cached tokens, exactly", good, why)

        crowd, crowd_ranks = at_once(router, traffic, given.chats)
        print(f"vllm dp=2, four at once: {crowd}; by rank {crowd_ranks}")
        score.check("vllm: four at once, within one block in 90 %", crowd.share(1) >= 0.9, f"{crowd.share(1):.1%}")
        served = [now - then for now, then in zip(engine.served(), before)]
        sent = [by_rank[rank] + crowd_ranks.get(rank, 0) for rank in range(2)]
        score.check("vllm: each rank served what was sent to it", served == sent and min(sent) > 0, f"served {served}, sent {sent}")
        score.check("vllm: the engine evicted", removed_count(router) > 50, removed_count(router))
        found = ghosts(router, engine, traffic, 40, seed=1)
        score.check("vllm: no ghost after evictions", found.right(), found)

        late = start_router()
        settle(late.admin)
        asked = [(blocks(router.admin, *request), blocks(late.admin, *request)) for request in traffic.past[-60:]]
        score.check("vllm: a router that came late knows the same", all(one == other for one, other in asked), "")
        score.check("vllm: and no other paths", entries(router.admin) == entries(late.admin), f"{entries(router.admin):.0f}, {entries(late.admin):.0f}")
        after_reset(router, engine, traffic, score)
        after_kill(router, engine, traffic, score)


def after_reset(router, engine, traffic, score):
    """/reset_prefix_cache answers at once; its event comes with the rank's next step."""
    post(f"{engine.url}/reset_prefix_cache")
    time.sleep(0.5)
    print(f"vllm: {entries(router.admin):.0f} entries half a second after the reset: no step, no event")
    for rank in range(engine.ranks):
        engine.ask("/v1/completions", {"model": "tiny", "prompt": [7], "max_tokens": 1}, rank)
    settle(router.admin)
    score.check("vllm: the reset empties the index with the next step", entries(router.admin) == 0, entries(router.admin))
    found = ghosts(router, engine, traffic, 20, seed=2)
    score.check("vllm: no ghost after the reset", found.right(), found)


def after_kill(router, engine, traffic, score):
    score.check("vllm: something is held before the kill", entries(router.admin) > 50, entries(router.admin))
    engine.kill()
    gone = wait_for("nothing is held of a dead engine", lambda: entries(router.admin) == 0)
    engine.start()
    engine.wait()
    back = wait_for("events after the restart", lambda: follows(router.admin, engine.ranks))
    taken = wait_for("readiness", lambda: rig.get(f"{router.admin}/readyz")[0] == 200)
    print(f"vllm: kill -9: index empty after {gone:.2f} s; after the engine's /health is 200 again: events {back:.2f} s, ready {taken:.2f} s more")
    found = ghosts(router, engine, traffic, 30, seed=3)
    score.check("vllm: no ghost after kill -9 and a restart", found.right(), found)
    again, _ = at_once(router, traffic, 20)
    score.check("vllm: and it predicts again", sum(again.counts.values()) >= 15, again)


def check_groups(given, score):
    """Five sliding-window layers to one with full attention: six groups, of which one holds whole prefixes."""
    with fleet(vllm_server.GEMMA3, 1, 400, 768) as (engine, start_router):
        router, traffic = start_router(), Traffic(seed=12, words_max=300)
        truth = Truth(engine, given.captures, "vllm-0.32.0-gemma3")
        errors, _ = one_by_one(router, traffic, given.chats, truth)
        truth.end()
        page = f"{router.admin}/metrics"
        other = rig.total(page, "forebay_kv_events_total", result="other_group")
        print(f"gemma3, one by one: predicted minus cached, in blocks: {errors}; {other:.0f} events of sliding windows")
        score.check("gemma3: events of sliding windows came", other > 0, other)
        print(f"gemma3: {errors.share(0):.0%} right, {errors.share(1):.0%} within one block")
        score.check("gemma3: one by one, within one block in 99 %", errors.share(1) >= 0.99, errors)
        good, why = replayed_exactly(given.captures)
        score.check("gemma3: the recording gives the same cached tokens, exactly", good, why)
        found = ghosts(router, engine, traffic, 30, seed=4)
        # Decision 0097: a few are too low, for a reason that is not known yet.
        score.check("gemma3: no ghost after evictions", max(found.counts) <= 1 and found.share(1) >= 0.9, found)


IMAGE_SECRET = "a-secret-of-the-tests"


def check_images(given, score):
    """Chats with images, each of which the router names."""
    folder = vllm_server.vision_dir()
    secret, config = os.path.join(folder, "image_key"), os.path.join(folder, "forebay.toml")
    with open(secret, "w", encoding="utf-8") as out:
        out.write(IMAGE_SECRET)
    with open(config, "w", encoding="utf-8") as out:
        out.write(f'image_key_file = "{secret}"\n')
    limits = ["--limit-mm-per-prompt", json.dumps({"image": 8, "video": 0})]
    flags = ("--config", config)
    with fleet(None, 1, 160, 3072, folder, limits, flags) as (engine, start_router):
        router, traffic = start_router(), ImageTraffic(seed=21)
        truth = ImageTruth(engine, given.captures, "vllm-0.32.0-images")
        errors, _ = one_by_one(router, traffic, given.chats, truth)
        truth.end()
        print(f"images, one by one: predicted minus cached, in blocks: {errors}; {removed_count(router):.0f} removals")
        score.check("images: a prediction for all but the first few", sum(errors.counts.values()) >= given.chats - 4, errors)
        score.check("images: one by one, within one block in 99 %", errors.share(1) >= 0.99, errors)
        score.check("images: none too high by more than a block", max(errors.counts, default=0) <= 1, errors)
        crowd, _ = at_once(router, traffic, given.chats // 2)
        print(f"images, four at once: {crowd}")
        late = start_router()
        settle(late.admin)
        asked = [(blocks(router.admin, *request), blocks(late.admin, *request)) for request in traffic.past[-40:]]
        score.check("images: a router that came late knows the same", all(one == other for one, other in asked), "")
