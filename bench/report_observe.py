"""The parts of docs/benchmarks.md on what binds and what would help."""

from __future__ import annotations

from report_table import Result, source, table


def binds(result: Result) -> str:
    """How often a planted cause is named, by scenario, and what a run without it gains."""
    summary = result["summary"]
    rows = []
    for name, share in summary["shares"].items():
        found = [one for one in result["raw"] if one["name"] == name]
        gains = sorted(one["gain"] for one in found if one["gain"] is not None)
        seconds = sum(one["seconds"] for one in found)
        gain = f"{gains[len(gains) // 2]:.1f}" if gains else "-"
        rows.append([name, f"{seconds:,}", f"{100 * share:.1f} %", gain])
    head = ["scenario", "seconds", "named rightly", "requests without the cause, times as many"]
    kept = summary["share"] >= 0.95 and summary["least"] >= 0.9 and not summary["not_confirmed"]
    bar = (
        f"The bars are {'kept' if kept else 'not kept'}: of {summary['seconds']:,} seconds "
        f"{100 * summary['share']:.1f} % are named rightly, and {100 * summary['least']:.1f} % at "
        "least in each scenario."
    )
    missed = summary["not_confirmed"]
    if missed:
        bar += f" Without their cause, these do not send enough more: {', '.join(missed)}."
    return "\n\n".join([table(head, rows), bar, source(result)])


def predict(result: Result) -> str:
    """Each prediction and what came of it."""
    rows = [
        [
            one["name"],
            "unknown" if one["unknown"] else f"{one['low']:.2f} to {one['high']:.2f}",
            f"{one['measured']:.2f}",
            f"{one['in_proportion']:.2f}",
            "right" if one["low"] <= one["measured"] <= one["high"] else "wrong",
        ]
        for one in result["raw"]
    ]
    head = ["change", "predicted gain", "measured", "in proportion", "verdict"]
    summary = result["summary"]
    text = (
        f"{summary['right']} of {summary['predictions']} are right, {summary['unknown']} unknown; "
        f"{summary['without_gain']} changes gain nothing. Intervals are "
        f"{100 * summary['width_median']:.0f} % wide in half of the cases and at most "
        f"{100 * summary['width_p90']:.0f} % in nine of ten. Predictions are off by "
        f"{100 * summary['mean_error']:.0f} % in the mean, what one would expect in proportion by "
        f"{100 * summary['mean_error_in_proportion']:.0f} %."
    )
    return "\n\n".join([table(head, rows), text, source(result)])


def recorder(result: Result) -> str:
    """What recording a run costs."""
    rows = [
        [
            load,
            f"{row['old_cpu_s_per_1000']:.4f}",
            f"{row['new_cpu_s_per_1000']:.4f}",
            f"{row['ratio']:.3f}",
            f"{row['bound']:.3f}",
        ]
        for load, row in result["summary"].items()
    ]
    head = ["load", "CPU s per 1,000 calls, not recorded", "recorded", "median ratio"]
    head.append("upper 95 % bound")
    most = result["settings"]["most"]
    is_kept = all(row["bound"] <= most for row in result["summary"].values())
    bar = f"The bar, a bound of {most:g}, is {'kept' if is_kept else 'not kept'}."
    return "\n\n".join([table(head, rows), bar, source(result)])
