"""What the Spark session is told, without starting one."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.spark.session import attempts, cores, session_settings

SCRATCH = Path("/scratch")


@pytest.mark.parametrize(
    ("master", "becomes"),
    [
        ("local", "local[1,4]"),
        ("local[3]", "local[3,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
    ],
)
def test_a_local_task_is_tried_again(master: str, becomes: str) -> None:
    assert session_settings(master, {}, SCRATCH)["spark.master"] == becomes


def test_the_configuration_wins() -> None:
    settings = session_settings(
        "local[2]", {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "9"}, SCRATCH
    )
    assert settings["spark.driver.memory"] == "2g"
    assert settings["spark.sql.shuffle.partitions"] == "9"


def test_java_options_of_the_configuration_join_ours() -> None:
    options = session_settings("local[2]", {"spark.driver.extraJavaOptions": "-Xss2m"}, SCRATCH)[
        "spark.driver.extraJavaOptions"
    ]
    assert options.endswith(" -Xss2m")
    assert "log4j2.configurationFile=file:///scratch/log4j2.properties" in options


def test_a_cluster_gets_runnel_itself_and_no_settings_of_a_local_jvm() -> None:
    settings = session_settings("spark://host:7077", {}, SCRATCH)
    assert settings["spark.master"] == "spark://host:7077"
    assert settings["spark.submit.pyFiles"] == "/scratch/runnel.zip"
    assert "spark.driver.memory" not in settings
    assert "UseSerialGC" not in settings["spark.driver.extraJavaOptions"]


def test_attempts_and_cores_are_those_spark_will_use() -> None:
    assert attempts("local[2]", {}) == 4
    assert attempts("local[2,7]", {}) == 7
    assert attempts("spark://h:1", {"spark.task.maxFailures": "2"}) == 2
    assert cores("local[3]") == 3
    assert cores("local") == 1
