"""The page of docs/ that shows a benchmark's figures: what `runnel bench` wrote goes in, Markdown comes
out. Nobody types a figure."""

from __future__ import annotations

from statistics import median
from typing import Any

_HEAD = """\
# Benchmarks

<!-- Generated from docs/benchmarks.json by `make generate`. -->

`make bench` starts a PostgreSQL of its own and measures Runnel beside `pg_recvlogical` (pgoutput, into
/dev/null) on the same backlogs in the same run. The rates are slopes between a small and a large backlog,
so that start-up drops out; drains alternate, and the ratio is the median over {repeat} repetitions. Source,
log, Spark and output share the machine: {cores} cores, {system}, Python {python}; `fsync` is off. Absolute
times say little on another machine: look at ratios and CPU a change. `runnel bench --output FILE` writes
all figures as JSON; those of this page ([benchmarks.json](benchmarks.json)) are of {when}.
"""

_PEERS = """\
## Beside others

The same kind of backlog through other tools, measured earlier on a machine of this size under PostgreSQL 15
(inserts, 100 a transaction, ten columns; ratios to `pg_recvlogical` of the same hour):

| tool | into | × pg_recvlogical | CPU outside Postgres, µs a row | after kill -9 |
|---|---|---|---|---|
| **Runnel** | JSON lines | **{ratio:.2f}** | **{outside:.1f}** | nothing lost, nothing twice |
| `pg_recvlogical`, test_decoding | /dev/null | 0.55 | 2.2 – 2.7 | |
| `pg_recvlogical`, wal2json | /dev/null | 0.46 | 1.4 – 2.0 | |
| pgstream | JSON on stdout | 0.14 – 0.19 | 18 – 19 | 91 rows twice |
| pg-bifrost | JSON on stdout | 0.11 – 0.12 | 34 – 44 | everything since the start twice |
| pgsink | a file | 0.16 | 29 – 30 | everything since the start twice |
| re_dms, its parsing half | gzipped CSV | 0.16 – 0.33 | 16 – 19 | |
| pg_flo with NATS | JSON on stdout (mixed changes) | 0.026 | 263 – 271 | 50 rows lost (into Postgres) |
| Debezium engine 2.7 | JSON in a file | 0.03 – 0.09 | 53 – 238 | 2,048 rows twice |

Their commit-to-line latency, 100 one-row transactions a second: pg-bifrost 0.4 ms (a pipe, no durable
position), pgstream 503 ms into Postgres at its one-second timer.
"""


def page(result: dict[str, Any]) -> str:
    drains = result["drain"]
    repeat = len(drains[0]["runnel_rows_s"])
    first = drains[0]
    parts = [
        _HEAD.format(repeat=repeat, when=result["when"], **result["machine"]),
        _drains(drains),
        _stages(result["stages"]),
        _live(result),
        _many(result),
        _PEERS.format(ratio=first["ratio"], outside=first["outside_us"]),
    ]
    return "\n".join(parts)


def _table(*rows: tuple[object, ...]) -> str:
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def _drains(drains: list[dict[str, Any]]) -> str:
    rows: list[tuple[object, ...]] = [
        ("backlog", "into", "× pg_recvlogical", "changes/s", "pg_recvlogical/s",
         "CPU outside Postgres, µs a change", "of it")
    ]  # fmt: skip
    for one in drains:
        cpu = {
            role: median(run.get(role, 0.0) for run in one["runnel_cpu_us"])
            for role in ("capture", "jvm", "workers", "driver")
        }
        rows.append(
            (
                one["title"], one["sink"], f"**{one['ratio']:.2f}**",
                _range(one["runnel_rows_s"]), _range(one["pg_recvlogical_rows_s"]),
                f"**{one['outside_us']:.2f}**",
                ", ".join(f"{role} {cost:.2f}" for role, cost in cpu.items()),
            )
        )  # fmt: skip
    walsender = median(run["walsender"] for run in drains[0]["runnel_cpu_us"])
    native = median(run["walsender"] for run in drains[0]["pg_recvlogical_cpu_us"])
    return "## A backlog drained\n\n" + _table(*rows) + (
        f"\nThe ratio can be above 1 because an eager reader makes the server's walsender slow: under"
        f" Runnel it spends {walsender:.1f} µs a row of the first backlog, under `pg_recvlogical`"
        f" {native:.1f}.\n"
    )  # fmt: skip


def _range(values: list[int]) -> str:
    return f"{min(values):,} – {max(values):,}"


def _stages(stages: dict[str, float]) -> str:
    rows: list[tuple[object, ...]] = [("step of a task", "CPU, µs a change")]
    rows += [(name, f"{cost:.2f}") for name, cost in stages.items()]
    return "## Cost of each step\n\nIn memory, without Spark and without writing:\n\n" + _table(*rows)


def _live(result: dict[str, Any]) -> str:
    late, idle, huge = result["latency"], result["idle"], result["huge"]
    roles = ("capture", "driver", "jvm", "workers", "planner")
    memory = _table(
        ("resident, MiB", *roles),
        ("a transaction of 10,000 rows", *(huge["small_mib"][role] for role in roles)),
        (f"one of {huge['rows']:,} rows", *(huge["huge_mib"][role] for role in roles)),
    )
    return (
        "## Running\n\n"
        f"- Commit to readable line, {late['rate']} one-row transactions a second: p50"
        f" **{late['p50_ms']} ms**, p99 **{late['p99_ms']} ms**, {late['seen']:,} of {late['of']:,} seen.\n"
        f"- Idle: **{idle['total']:.1f} %** of a core for the whole tree.\n"
        "- Memory does not grow with a transaction:\n\n" + memory
    )


def _many(result: dict[str, Any]) -> str:
    tables: list[tuple[object, ...]] = [("tables", "CPU outside Postgres, µs a change")]
    tables += [(f"{one['tables']:,}", f"{one['outside_us']:.2f}") for one in result["tables"]]
    pipelines: list[tuple[object, ...]] = [
        ("pipelines", "seconds", "capture, µs", "workers, µs", "JVM, µs")
    ]
    for one in result["pipelines"]:
        cpu = one["cpu_us"]
        pipelines.append((one["pipelines"], one["seconds"], cpu["capture"], cpu["workers"], cpu["jvm"]))
    return (
        "## Many tables, many pipelines\n\nThese are no slopes: the start of capture is in them."
        " The same 300,000 changes over more and more tables:\n\n"
        + _table(*tables)
        + "\nOne log, read by one to four pipelines, until each has delivered 300,000 changes:\n\n"
        + _table(*pipelines)
    )
