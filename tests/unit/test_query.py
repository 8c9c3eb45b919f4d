"""How many tasks a pipeline's batches may have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runnel.config.models import Spark
from runnel.sinks.api import Plan
from runnel.spark.query import tasks


@pytest.mark.parametrize(
    ("master", "settings", "configured", "plan", "parked", "expected"),
    [
        ("local[4]", {}, None, Plan.STAGED, False, 3),
        ("local[1]", {}, None, Plan.STAGED, False, 1),
        ("spark://host:7077", {}, None, Plan.STAGED, False, 12),
        ("local[2]", {"spark.master": "yarn"}, None, Plan.STAGED, False, 12),
        ("spark://host:7077", {}, 5, Plan.STAGED, False, 5),
        ("spark://host:7077", {}, 5, Plan.STAGED, True, 1),
        ("spark://host:7077", {}, None, Plan.SINGLE, False, 1),
    ],
)
def test_a_cluster_is_used_as_a_whole_and_a_machine_but_for_captures_core(
    master: str, settings: dict[str, str], configured: int | None, plan: Plan, parked: bool, expected: int
) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=12))
    cluster = Spark.model_validate({"master": master, **settings})
    assert tasks(spark, cluster, configured, plan, parked=parked) == expected


def test_a_cluster_that_knows_no_cores_yet_gets_one_task() -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=0))
    assert tasks(spark, Spark.model_validate({"master": "yarn"}), None, Plan.STAGED, parked=False) == 1
