"""What `status` tells about pipelines that the configuration does not name."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runnel.overview import Overview, _notes
from runnel.progress.records import PipelineRow


def notes(name: str, *others: str, alive: bool) -> list[str]:
    rows = {
        one: PipelineRow(one, cast(Any, None), 0, "streaming", None, False, datetime.now(UTC))
        for one in (name, *others)
    }
    return _notes(
        cast(Any, SimpleNamespace(pipelines=dict.fromkeys(others))),
        cast(Any, SimpleNamespace(slot="shop_1")),
        cast(Any, SimpleNamespace(name="shop_1", invalidation=None, wal_status="reserved")),
        {**rows},
        {"capture": alive} | dict.fromkeys(rows, alive),
        Overview({}, {}, {}, {}),
    )


@pytest.mark.parametrize("name", ["runnel", "forgotten"])
def test_a_pipeline_that_runs_is_not_called_unconfigured(name: str) -> None:
    assert notes(name, alive=True) == []


def test_a_stopped_one_that_is_not_configured_is_to_be_removed() -> None:
    said = "pipeline forgotten is not configured and holds the slot → runnel remove forgotten"
    assert notes("forgotten", alive=False) == [said]


def test_one_that_was_started_without_a_file_is_started_so_again_or_destroyed() -> None:
    said = "pipeline runnel was started without a file and holds the slot → start it so again, or runnel "
    assert notes("runnel", alive=False) == [said + "destroy"]
    assert notes("runnel", "lake", alive=False)[0] == said + "remove runnel"
