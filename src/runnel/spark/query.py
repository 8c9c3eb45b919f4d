"""Start the streaming query of a pipeline.

What comes in: what its tasks shall do, how many there may be, and where the reader begins. What goes
out: a running query that hands each batch, as a frame of receipts, to a function in the driver.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.models import Batch, Spark
from ..postgres.lsn import Lsn
from ..sinks.api import Plan
from . import session as spark_session
from .work import WorkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_STARTING = threading.Lock()

PARKED_MAX_BYTES = 16 << 20
"""Changes of parked keys travel through the driver: smaller batches bound its memory."""


def tasks(spark: SparkSession, cluster: Spark, configured: int | None, plan: Plan, *, parked: bool) -> int:
    """The most tasks that a batch may have."""
    if plan is Plan.SINGLE or parked:
        return 1  # a parked key may move to another in one chunk and change in the next
    if configured is not None:
        return configured
    master = cluster.settings.get("spark.master", cluster.master)
    if spark_session.is_local(master):
        return max(1, spark_session.cores(master) - 1)  # one core is capture's
    return max(1, int(spark.sparkContext.defaultParallelism))  # the cluster's cores, as it has them now


def options(
    batch: Batch, start: Lsn, *, tasks: int, parked: bool, control: Path, until: Lsn | None
) -> dict[str, str]:
    """What the reader is told, beside what its tasks do."""
    told = {
        "start": str(start),
        "tasks": str(tasks),
        "max_bytes": str(min(batch.max_bytes, PARKED_MAX_BYTES) if parked else batch.max_bytes),
        "linger": str(batch.linger),
        "control": str(control),
    }
    return told if until is None else told | {"until": str(until)}


def start(
    spark: SparkSession,
    spec: WorkSpec,
    options: Mapping[str, str],
    checkpoint: str,
    name: str,
    deliver: Callable[[DataFrame], None],
) -> StreamingQuery:
    """Spark keeps the environment of a registered source's workers in one plain HashMap and adds to it
    whenever it starts one: two queries that begin together damage it for good, and every task of theirs
    then fails to be read. So each query registers the source, and a map, of its own."""
    with _STARTING:
        from .source import RunnelDataSource

        spark.dataSource.register(RunnelDataSource)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", spec.pipeline)
        query: StreamingQuery = (
            spark.readStream.format("runnel")
            .options(view="work", log=spec.log, spec=json.dumps(spec.to_json()), **options)
            .load()
            .writeStream.foreachBatch(lambda frame, _: deliver(frame))
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .queryName(name)
            .start()
        )
    return query
