"""Configuration: where values come from, who wins, and what is shown of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from runnel.config import Config, load, redact, sink_from_flag, write_effective
from runnel.errors import UsageError
from runnel.sinks.files.settings import FilesSettings
from runnel.sinks.stdout.settings import StdoutSettings

FULL = """\
source:
  url: ${SOURCE_URL}
  name: shop
  tables: ["public.*", "!public.audit_*"]
log: {path: log, retain: 1h, max_bytes: 1GB}
pipelines:
  events:
    import: false
    sink: {type: files, path: "${OUT:-out}", format: csv}
    batch: {linger: 200ms}
spark: {master: "local[2]", spark.executor.memory: 4g, spark.ui.enabled: true}
"""
URL = "postgresql://me:s3cr3t-word@db/shop"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(here: Path, text: str, environ: dict[str, str] | None = None, **overrides: Any) -> Config:
    (here / "runnel.yaml").write_text(text)
    return load(None, overrides, environ=environ or {})


def test_a_whole_file_is_read(here: Path) -> None:
    config = read(here, FULL, {"SOURCE_URL": URL})
    assert config.source_url == URL
    assert config.state_url == URL
    assert config.source.name == "shop"
    assert config.source.tables == ("public.*", "!public.audit_*")
    assert (config.log.path, config.log.retain, config.log.max_bytes) == (str(here / "log"), 3600, 10**9)
    events = config.pipelines["events"]
    assert isinstance(events.sink, FilesSettings)
    assert (events.sink.path, events.sink.format) == (str(here / "out"), "csv")
    assert events.batch.linger == pytest.approx(0.2)
    assert config.spark.master == "local[2]"
    assert config.spark.settings == {"spark.executor.memory": "4g", "spark.ui.enabled": "true"}


def test_defaults_need_only_a_source(here: Path) -> None:
    config = read(here, f"source: {{url: {URL}}}")
    assert config.source.name == "runnel"
    assert config.source.tables == ("*.*",)
    assert config.log.path == str(here / ".runnel/log")
    assert config.log.settings().chunk_bytes == 8 << 20
    assert config.pipelines == {}
    assert config.spark.master == "local[*]"


def test_a_plain_string_is_the_path_of_the_log(here: Path) -> None:
    assert read(here, f"source: {{url: {URL}}}\nlog: ./elsewhere").log.path == str(here / "elsewhere")


def test_variables_are_expanded_in_every_value(here: Path) -> None:
    config = read(
        here,
        "source: {url: 'postgresql://${WHO:-me}@${HOST}/x', tables: '${TABLES}', messages: '${M}'}\n"
        "log: {retain: '${KEEP:-2h}', path: '$${literal}'}\n",
        {"HOST": "db", "WHO": "", "TABLES": "public.*, !public.b", "M": "no"},
    )
    assert config.source_url == "postgresql://me@db/x"
    assert config.source.tables == ("public.*", "!public.b")
    assert config.source.messages is False
    assert config.log.retain == 7200
    assert config.log.path == str(here / "${literal}")


def test_a_comma_inside_quotes_is_part_of_a_tables_name(here: Path) -> None:
    text = """source: {url: 'postgresql://me@db/x', tables: 'public."a,b", !public."c"",d" ,public.e'}"""
    tables = ('public."a,b"', '!public."c"",d"', "public.e")
    assert read(here, text).source.tables == tables


def test_the_environment_overrides_the_file_and_flags_override_both(here: Path) -> None:
    environ = {
        "RUNNEL_SOURCE_URL": "postgresql://env/x",
        "RUNNEL_SOURCE_NAME": "fromenv",
        "RUNNEL_LOG": "env-log",
        "RUNNEL_LOG_MAX_BYTES": "2GB",
        "RUNNEL_SPARK_MASTER": "local[3]",
    }
    config = read(here, f"source: {{url: {URL}, ack: log}}", environ, **{"source.name": "flag"})
    assert config.source_url == "postgresql://env/x"
    assert config.source.ack == "log"
    assert config.source.name == "flag"
    assert (config.log.path, config.log.max_bytes) == (str(here / "env-log"), 2 * 10**9)
    assert config.spark.master == "local[3]"


def test_a_variable_adds_to_a_log_that_is_a_plain_path(here: Path) -> None:
    config = read(here, f"source: {{url: {URL}}}\nlog: here", {"RUNNEL_LOG_RETAIN": "1h"})
    assert (config.log.path, config.log.retain) == (str(here / "here"), 3600)


@pytest.mark.parametrize("log", ["log: {path: here, retain: 1h}", "log: {retain: 1h}"])
def test_the_variable_of_the_logs_path_leaves_its_other_settings(here: Path, log: str) -> None:
    config = read(here, f"source: {{url: {URL}}}\n{log}", {"RUNNEL_LOG": "there"})
    assert (config.log.path, config.log.retain) == (str(here / "there"), 3600)


@pytest.mark.parametrize("log", ["log: here", ""])
def test_the_variable_of_the_logs_path_replaces_a_plain_path(here: Path, log: str) -> None:
    config = read(here, f"source: {{url: {URL}}}\n{log}", {"RUNNEL_LOG": "there"})
    assert config.log.path == str(here / "there")


def test_paths_beside_each_other_are_two_places(here: Path) -> None:
    pipelines = "pipelines: {a: {sink: {type: files, path: out}}, b: {sink: {type: files, path: out-b}}}"
    assert len(read(here, f"source: {{url: {URL}}}\n{pipelines}").pipelines) == 2


def test_flags_alone_are_enough(here: Path) -> None:
    config = load(
        None,
        {"source.url": URL, "pipelines.stdout.sink": sink_from_flag("stdout")},
        environ={},
        default=None,
    )
    assert isinstance(config.pipelines["stdout"].sink, StdoutSettings)


def test_variables_of_others_that_look_alike_are_left_alone(here: Path) -> None:
    environ = {
        "RUNNEL_SOURCE_SERVICE_HOST": "10.0.0.1",
        "RUNNEL_LOG_FORMAT": "json",
        "RUNNEL_EVENTS_FD": "3",
    }
    assert read(here, f"source: {{url: {URL}}}", environ).source.name == "runnel"


def test_nothing_that_shows_a_configuration_shows_a_secret(here: Path) -> None:
    config = read(
        here,
        f"source: {{url: '{URL}'}}\nstate: {{url: 'host=db password=s3cr3t-word user=me'}}",
    )
    for shown in (repr(config), str(config), str(config.redacted()), config.model_dump_json()):
        assert "s3cr3t-word" not in shown
    assert config.redacted()["source"]["url"] == "postgresql://me:********@db/shop"
    assert config.redacted()["state"]["url"] == "host=db password=******** user=me"


def test_the_effective_file_gives_a_child_the_same_configuration(here: Path) -> None:
    config = read(here, FULL, {"SOURCE_URL": "postgresql://me:pa${HOME}ss@db/shop"})
    path = here / "effective.yaml"
    write_effective(config, path)
    write_effective(config, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(here).count("effective.yaml") == 1
    assert not [name for name in os.listdir(here) if name.startswith(".effective")]
    again = load(path, environ={"RUNNEL_SOURCE_URL": "postgresql://other/x", "HOME": "/root"})
    assert again == config
    assert again.source_url == "postgresql://me:pa${HOME}ss@db/shop"


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("stdout", {"type": "stdout"}),
        ("files,path=out,format=jsonl", {"type": "files", "path": "out", "format": "jsonl"}),
        ('files,path="a,b",roll_bytes=1MiB', {"type": "files", "path": "a,b", "roll_bytes": "1MiB"}),
        ("file:///data/out?format=csv", {"type": "files", "path": "file:///data/out", "format": "csv"}),
        ("file:///data/a,b", {"type": "files", "path": "file:///data/a,b"}),
        ("s3://b/p", {"type": "files", "path": "s3://b/p"}),
        (
            "s3://b/p?region=x&format=csv&endpoint_override=h%3A9",
            {"type": "files", "path": "s3://b/p?region=x&endpoint_override=h%3A9", "format": "csv"},
        ),
    ],
)
def test_a_sink_can_be_given_as_a_flag(text: str, settings: dict[str, str]) -> None:
    assert sink_from_flag(text) == settings


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        ("filse,path=x", "'filse' is not a sink", "did you mean 'files'?"),
        ("files,out", "cannot read 'out'", "type,key=value"),
        ("kafka://host/topic", "no sink understands kafka:// URLs", "file://"),
        ("", "'' is not a sink", "allowed: files, stdout"),
    ],
)
def test_a_wrong_sink_flag_is_explained(text: str, said: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        sink_from_flag(text)
    assert said in caught.value.message
    assert remedy in caught.value.hint


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "cannot reach postgresql://me:secret@db:5432/x",
            "cannot reach postgresql://me:********@db:5432/x",
        ),
        ("postgres://me:p@ss/w:rd@db/x failed", "postgres://me:********@db/x failed"),
        (
            "postgresql://db/x?user=me&password=secret&sslmode=on",
            "postgresql://db/x?user=me&password=********&sslmode=on",
        ),
        ("host=db password='a \\' b' user=me", "host=db password=******** user=me"),
        ("host=db password = secret user=me", "host=db password =******** user=me"),
        ('{"password": "secret", "user": "me"}', '{"password":********, "user": "me"}'),
        ("PGPASSWORD=secret psql", "PGPASSWORD=******** psql"),
        ("sslpassword=secret", "sslpassword=********"),
        (
            'FATAL:  password authentication failed for user "me"',
            'FATAL:  password authentication failed for user "me"',
        ),
        ("postgresql://me@db/x", "postgresql://me@db/x"),
    ],
)
def test_redact_masks_secrets_and_nothing_else(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_redact_knows_the_passwords_it_has_loaded(here: Path) -> None:
    read(here, "source: {url: 'postgresql://me:ab%40cdefg@db/x'}")
    assert redact('missing "=" after "ab@cdefg"') == 'missing "=" after "********"'


def test_the_stage_is_beside_a_local_log_and_on_local_disk_beside_an_object_store(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    assert read(here, f"source: {{url: {URL}}}\nlog: ./log").stages == str(here / "log" / "_stage")
    far = read(here, f"source: {{url: {URL}, name: shop}}\nlog: s3://b/log?endpoint_override=h:9")
    assert far.stages == str(here / ".runnel/stage/shop")


@pytest.mark.parametrize("url", ["s3://b/log?region=x", "abfs://box@account.dfs.core.windows.net/log"])
def test_a_url_without_secrets_is_a_place_for_the_log(here: Path, url: str) -> None:
    assert read(here, f"source: {{url: {URL}}}\nlog: '{url}'").log.path == url
