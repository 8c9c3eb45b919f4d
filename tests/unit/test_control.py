"""The driver knows of every batch that may begin, however its wish and the planner's offer meet."""

from __future__ import annotations

from pathlib import Path

from runnel.postgres.lsn import Lsn
from runnel.spark.control import Control


def test_an_offer_is_known_to_the_driver_before_spark_hears_of_it(tmp_path: Path) -> None:
    planner, driver = Control(str(tmp_path)), Control(tmp_path)
    assert driver.offered() == Lsn(0)
    assert planner.offer(Lsn(10), Lsn(20)) == Lsn(20)
    assert driver.offered() == Lsn(20)


def test_an_offer_that_meets_a_hold_is_taken_back(tmp_path: Path) -> None:
    planner, driver = Control(str(tmp_path)), Control(tmp_path)
    driver.hold()
    assert planner.offer(Lsn(10), Lsn(20)) == Lsn(10)
    assert driver.offered() == Lsn(10)
    driver.release()
    assert planner.offer(Lsn(10), Lsn(20)) == Lsn(20)


def test_no_offer_is_no_offer(tmp_path: Path) -> None:
    assert Control(tmp_path).offer(Lsn(10), Lsn(10)) == Lsn(10)
    assert list(tmp_path.iterdir()) == []
