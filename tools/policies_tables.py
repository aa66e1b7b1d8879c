"""The tables of tools/policies, in Markdown. A run is the figures of all policies with one seed; a cell has a run for each seed."""

import math
import statistics

OWN = ("kv", "session", "least_loaded", "power_of_two", "round_robin", "random")
OTHERS = (
    "lmetric",
    "dynamo",
    "dynamo_agentic",
    "sglang_cache_aware",
    "vllm_kv_aware",
    "llm_d",
    "llm_d_legacy",
    "longest_prefix",
    "session_fixed",
    "session_bounded",
)
ALL = OWN + OTHERS
# Of a cell of the matrix: without rules that no operator would run.
SOUND = tuple(name for name in ALL if name not in ("power_of_two", "random", "longest_prefix"))
TIMES = ("ttft_ms_mean", "ttft_ms_p99")
FIGURES = {
    "ttft_ms_mean": "TTFT mean, ms",
    "ttft_ms_p99": "TTFT p99, ms",
    "goodput": "goodput",
    "hit_rate": "hits",
    "load_max_over_mean": "load, max/mean",
}
COMPARED = ("ttft_ms_mean", "ttft_ms_p99", "goodput")
SLACK = {"goodput": 0.005, "hit_rate": 0.005}
# Requirement K8: by so much `kv` may be worse than the best rule of a cell, where that rule serves so many requests in time.
GOODPUT_ASKED, MEAN_WORSE_MAX, GOODPUT_WORSE_MAX = 0.5, 0.05, 0.02


def seeds_of(runs, name, figure):
    return [run[name][figure] for run in runs]


def middle(runs, name, figure):
    return statistics.median(seeds_of(runs, name, figure))


def is_more_better(figure):
    return figure in ("goodput", "hit_rate")


def is_better(runs, figure, one, other):
    """Is one policy better than the other with each seed, and by more than nothing?"""
    sign = 1 if is_more_better(figure) else -1
    gains = [sign * (run[one][figure] - run[other][figure]) for run in runs]
    least = SLACK.get(figure, 0.01 * abs(middle(runs, other, figure)))
    return min(gains) > 0 and statistics.median(gains) > least


def best(runs, figure, names=ALL):
    pick = max if is_more_better(figure) else min
    return pick(names, key=lambda name: middle(runs, name, figure))


def shown(figure, value):
    return f"{value:,.0f}" if figure in TIMES else f"{value:.3f}" if figure == "goodput" else f"{value:.2f}"


def spread(runs, name, figure):
    """How far a seed lies from the median at most."""
    at = middle(runs, name, figure)
    far = max(abs(value - at) for value in seeds_of(runs, name, figure))
    if figure in TIMES:
        return f" ±{far / at:.0%}" if at else ""
    return f" ±{far:.3f}" if figure == "goodput" else f" ±{far:.2f}"


def tables(title, cells):
    """One table for each figure: a row for each policy, a column for each load."""
    text = f"\n### {title}\n"
    for figure, words in FIGURES.items():
        text += f"\n| {words} | " + " | ".join(f"{load} %" for load in cells) + " |\n|---|" + "---|" * len(cells) + "\n"
        for name in ALL:
            row = []
            for runs in cells.values():
                cell = shown(figure, middle(runs, name, figure)) + spread(runs, name, figure)
                is_good = figure in COMPARED and not is_better(runs, figure, best(runs, figure), name)
                refused = middle(runs, name, "refused") if figure == "ttft_ms_mean" else 0
                row.append((f"**{cell}**" if is_good else cell) + (f", {refused:,.0f} refused" if refused else ""))
            text += f"| `{name}` | " + " | ".join(row) + " |\n"
    return text


def losses(done):
    """Each cell in which another policy is better than `kv`."""
    text = "\n### Where another policy is better than `kv`\n\n"
    rows = ties = firsts = 0
    body = ""
    for title, load, runs in done:
        for figure in COMPARED:
            better = [name for name in ALL if name != "kv" and is_better(runs, figure, name, "kv")]
            if better:
                rows += 1
                names = sorted(better, key=lambda name: middle(runs, name, figure), reverse=is_more_better(figure))
                others = ", ".join(f"`{name}` {shown(figure, middle(runs, name, figure))}" for name in names[:3])
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                kv = shown(figure, middle(runs, "kv", figure)) + spread(runs, "kv", figure)
                body += f"| {title}, {load} % | {FIGURES[figure]} | {kv} | {others}{more} |\n"
            elif all(is_better(runs, figure, "kv", name) for name in ALL if name != "kv"):
                firsts += 1
            else:
                ties += 1
    text += f"| of {rows + ties + firsts} cells of TTFT mean, TTFT p99 and goodput | cells |\n|---|---|\n"
    text += f"| `kv` is better than each other policy | {firsts} |\n| `kv` ties with the best | {ties} |\n| another is better | {rows} |\n"
    return text + ("\n| trace, load | figure | `kv` | better |\n|---|---|---|---|\n" + body if body else "")


def means(done):
    """`kv` beside the best rule of others, cell by cell, and whether it is worse."""
    text, ratios = "\n### All cells\n\n| `kv` beside the best rule of others | geometric mean | best cell | worst cell |\n|---|---|---|---|\n", {}
    for figure in TIMES:
        of = [middle(runs, "kv", figure) / middle(runs, best(runs, figure, OTHERS), figure) for _, _, runs in done]
        ratios[figure] = geometric(of)
        text += f"| {FIGURES[figure]}: ratio | {ratios[figure]:.2f} | {min(of):.2f} | {max(of):.2f} |\n"
    of = [middle(runs, "kv", "goodput") - middle(runs, best(runs, "goodput", OTHERS), "goodput") for _, _, runs in done]
    return text + f"| goodput: difference (mean) | {statistics.mean(of):+.3f} | {max(of):+.3f} | {min(of):+.3f} |\n", ratios


def frontier(title, load, runs):
    """Hits, balance and p99 of each policy, and which are not behind another in all three."""
    figures = {"hit_rate": max, "load_max_over_mean": min, "ttft_ms_p99": min}
    points = {name: {figure: middle(runs, name, figure) for figure in figures} for name in ALL}

    def is_behind(name):
        def ahead(other):
            sign = {figure: (1 if pick is max else -1) * (points[other][figure] - points[name][figure]) for figure, pick in figures.items()}
            return min(sign.values()) >= 0 and max(sign.values()) > 0

        return any(ahead(other) for other in ALL if other != name)

    text = f"\n### Frontier: {title}, {load} %\n\n| policy | hits | load, max/mean | TTFT p99, ms | on the frontier |\n|---|---|---|---|---|\n"
    for name in sorted(ALL, key=lambda name: points[name]["ttft_ms_p99"]):
        cells = " | ".join(shown(figure, points[name][figure]) + spread(runs, name, figure) for figure in figures)
        text += f"| `{name}` | {cells} | {'' if is_behind(name) else 'yes'} |\n"
    return text


def ratio(runs, figure, other):
    """`kv` over another; goodput: the difference."""
    kv, least = middle(runs, "kv", figure), middle(runs, other, figure)
    return kv - least if figure == "goodput" else kv / least


def faults(runs, bests):
    """Where `kv` is beaten by more than requirement K8 allows. Of a cell that the best rule fails in too, nothing is asked."""
    if middle(runs, bests["goodput"], "goodput") < GOODPUT_ASKED:
        return []
    found = []
    if (mean := ratio(runs, "ttft_ms_mean", bests["ttft_ms_mean"])) > 1 + MEAN_WORSE_MAX:
        found.append(f"mean {mean - 1:+.0%}")
    if (less := ratio(runs, "goodput", bests["goodput"])) < -GOODPUT_WORSE_MAX:
        found.append(f"goodput {less:+.3f}")
    return found


def matrix(title, done):
    """A row for each cell: `kv` beside the best of all other rules, figure by figure. Returns how many cells have a fault, too."""
    head = ("case, load", "`kv`: TTFT mean / p99, ms; goodput", "refused", "hits", "best mean", "best p99", "best goodput", "worse")
    text = f"\n### {title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}\n"
    ratios, count = {figure: [] for figure in COMPARED}, 0
    for name, load, runs in done:
        others = [other for other in runs[0] if other != "kv"]
        bests = {figure: best(runs, figure, others) for figure in COMPARED}
        worse = faults(runs, bests)
        count += bool(worse)
        mean, p99, goodput = (shown(figure, middle(runs, "kv", figure)) for figure in COMPARED)
        cells = [f"{name}, {load} %", f"{mean} / {p99}; {goodput}", f"{middle(runs, 'kv', 'refused'):,.0f}"]
        cells.append(f"{middle(runs, 'kv', 'hit_rate'):.3f}")
        for figure, other in bests.items():
            ratios[figure].append(ratio(runs, figure, other))
            cells.append(f"`{other}` {shown(figure, middle(runs, other, figure))}")
        text += f"| {' | '.join(cells)} | {'**' + ', '.join(worse) + '**' if worse else ''} |\n"
    text += "\n| `kv` beside the best rule of each cell | mean | worst cell |\n|---|---|---|\n"
    for figure in TIMES:
        of = ratios[figure]
        text += f"| {FIGURES[figure]}: ratio, geometric | {geometric(of):.3f} | {max(of):.2f} |\n"
    of = ratios["goodput"]
    text += f"| goodput: difference | {statistics.mean(of):+.3f} | {min(of):+.3f} |\n"
    return text + f"\nCells in which `kv` is worse by more than goal K8 allows: {count} of {len(done)}.\n", count


def geometric(ratios):
    return math.exp(statistics.mean(map(math.log, ratios)))
