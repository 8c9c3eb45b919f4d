"""Start the streaming query of a pipeline.

What comes in: what its tasks shall do and where the reader begins. What goes out: a running query that
hands each batch, as a frame of receipts, to a function in the driver.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .work import WorkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_STARTING = threading.Lock()


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
