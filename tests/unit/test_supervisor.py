"""What the supervisor makes of what its children say."""

from __future__ import annotations

import json
import os

import pytest

from runnel.config.models import Config
from runnel.errors import RunnelError
from runnel.supervisor import supervisor
from runnel.supervisor.child import Event


def test_once_does_not_wait_for_ever_while_another_pipeline_keeps_the_log_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "ONCE_PATIENCE", -1.0)
    config = Config.model_validate({"source": {"url": "postgresql://me@db/shop"}})
    one = supervisor.Supervisor(config, ["a"], once=True, plain=True)
    one._check_patience()
    value = {"event": "state", "who": "capture", "state": "paused", "why": "the log is full, held by 'b'"}
    one._take(Event("capture", value))
    with pytest.raises(RunnelError, match="held by 'b'") as raised:
        one._check_patience()
    assert raised.value.hint


def test_what_the_children_say_is_handed_on_to_whoever_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setenv("RUNNEL_EVENTS_FD", str(write))
    config = Config.model_validate({"source": {"url": "postgresql://me@db/shop"}})
    one = supervisor.Supervisor(config, ["a"], plain=True)
    value = {"event": "state", "who": "a", "state": "live"}
    one._take(Event("pipelines", value))
    os.close(write)
    with os.fdopen(read) as said:
        assert [json.loads(line) for line in said] == [value]
