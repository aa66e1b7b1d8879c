"""What the router believes, asked from outside: the explanation of one prompt, and when all events have arrived."""

import collections
import time

import rig
from engines.vllm_server import post


def expected(admin, path, body):
    """{dp_rank: cached tokens} that the router expects of each rank of the only worker."""
    answer, _ = post(f"{admin}/debug/overlap?endpoint={path}", body)
    return {rank["dp_rank"]: rank["cached_tokens_expected"] for rank in answer["ranks"]}


def blocks(admin, path, body):
    """{dp_rank: blocks} that the router believes each rank holds."""
    answer, _ = post(f"{admin}/debug/overlap?endpoint={path}", body)
    return {rank["dp_rank"]: rank["overlap_blocks"] for rank in answer["ranks"]}


def entries(admin):
    return rig.total(f"{admin}/metrics", "forebay_index_entries")


def follows(admin, ranks):
    """True when the events of all ranks are followed."""
    return rig.total(f"{admin}/metrics", "forebay_kv_feed_live") >= ranks


def settle(admin, quiet_s=0.5):
    """Waits until no batch has come for so long."""
    seen, since = None, time.monotonic()
    while time.monotonic() - since < quiet_s:
        now = rig.total(f"{admin}/metrics", "forebay_kv_batches_total"), entries(admin)
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.02)


def wait_for(what, condition, seconds_max=60.0):
    """Seconds until it is true."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds_max:
            raise SystemExit(f"gave up waiting after {seconds_max:.0f} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - start


class Errors:
    """Predicted minus true overlap, in blocks."""

    def __init__(self):
        self.counts = collections.Counter()

    def add(self, predicted_tokens, true_tokens, block_tokens):
        self.counts[round((predicted_tokens - true_tokens) / block_tokens)] += 1

    def share(self, within):
        return sum(count for error, count in self.counts.items() if abs(error) <= within) / max(1, sum(self.counts.values()))

    def right(self):
        """None too low, none more than one block too high, and that rarely: where two prompts part in the middle of what is
        one token in the one and two in the other, a block's bytes agree and its tokens do not."""
        return min(self.counts, default=0) >= 0 and max(self.counts, default=0) <= 1 and self.share(0) >= 0.9

    def __str__(self):
        return ", ".join(f"{error:+d}: {count}" if error else f"0: {count}" for error, count in sorted(self.counts.items()))
