"""Each kind of wrong configuration, and what the user reads about it: where, what, and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.config import load
from runnel.errors import Kind, UsageError

SOURCE = "source: {url: postgresql://me@db/shop}\n"
SINK = "pipelines:\n  a:\n    sink: {type: stdout}\n"


def refused(
    tmp_path: Path,
    text: str,
    environ: dict[str, str] | None = None,
    overrides: dict[str, object] | None = None,
) -> UsageError:
    path = tmp_path / "runnel.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path, overrides, environ=environ or {})
    assert caught.value.kind is Kind.USAGE
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert "\n" not in caught.value.hint
    return caught.value


CASES = {
    "an unknown section": (
        SOURCE + "pipelnes: {}",
        ":2: pipelnes: unknown key",
        "allowed here: source, state, log, pipelines, spark; did you mean 'pipelines'?",
    ),
    "an unknown key": (
        "source:\n  urk: x\n  url: postgresql://x/y",
        ":2: source.urk: unknown key",
        "did you mean 'url'?",
    ),
    "an unknown key of the log": (
        SOURCE + "log: {pth: x}",
        ":2: log.pth: unknown key",
        "did you mean 'path'?",
    ),
    "an unknown key of a pipeline": (
        SOURCE + SINK + "    on_eror: stop",
        ":5: pipelines.a.on_eror: unknown key",
        "did you mean 'on_error'?",
    ),
    "an unknown key of a batch": (
        SOURCE + SINK + "    batch: {size: 1}",
        ":5: pipelines.a.batch.size: unknown key",
        "allowed here: max_bytes, linger",
    ),
    "an unknown key of a sink": (
        SOURCE + "pipelines:\n  a:\n    sink:\n      type: files\n      path: x\n      fromat: csv",
        ":7: pipelines.a.sink.fromat: unknown key",
        "did you mean 'format'?",
    ),
    "a setting that comes in a later version": (
        SOURCE + SINK + "    filter: x",
        ":5: pipelines.a.filter: not available in this version",
        "leave it out",
    ),
    "a value that is not one of the choices": (
        SOURCE + "pipelines:\n  a:\n    sink: {type: files, path: x, format: josnl}",
        ":4: pipelines.a.sink.format: 'josnl' is not allowed",
        "allowed: jsonl, csv, parquet; did you mean 'jsonl'?",
    ),
    "a key that is another sink's": (
        SOURCE + "pipelines:\n  a:\n    sink: {type: stdout, pth: x}",
        ":4: pipelines.a.sink.pth: unknown key",
        "allowed here: type, format, max_record_bytes",
    ),
    "a misspelt key, before what is missing for it": (
        SOURCE + "pipelines:\n  a:\n    sink:\n      type: files\n      pth: x",
        ":6: pipelines.a.sink.pth: unknown key",
        "did you mean 'path'? (then 1 more to mend)",
    ),
    "a choice of the source": (
        "source:\n  url: postgresql://x/y\n  ack: sync",
        ":3: source.ack: 'sync' is not allowed",
        "allowed: sink, log; did you mean 'sink'?",
    ),
    "an unknown sink": (
        SOURCE + "pipelines:\n  a:\n    sink:\n      type: fils",
        ":5: pipelines.a.sink.type: 'fils' is not a sink",
        "did you mean 'files'?",
    ),
    "a sink without a type": (
        SOURCE + "pipelines:\n  a:\n    sink: {path: x}",
        ":4: pipelines.a.sink: does not say which sink",
        "add type: one of files, stdout",
    ),
    "a sink that is a word": (
        SOURCE + "pipelines:\n  a:\n    sink: stdout",
        ":4: pipelines.a.sink: ",
        "sink: {type: stdout, …}",
    ),
    "a pipeline without a sink": (
        SOURCE + "pipelines:\n  a: {}",
        ":3: pipelines.a.sink: missing",
        "add sink: …",
    ),
    "a pipeline without anything": (SOURCE + "pipelines:\n  a:", ":3: pipelines.a: ", "write a mapping"),
    "a sink without a path": (
        SOURCE + "pipelines:\n  a:\n    sink: {type: files}",
        ":4: pipelines.a.sink.path: missing",
        "add path: …",
    ),
    "no source": (SINK, "runnel.yaml:1: source: missing", "add source: …"),
    "a source without a URL": ("source: {name: x}", ":1: source.url: missing", "add url: …"),
    "another database's URL": (
        "source: {url: 'mysql://u:secret@h/d'}",
        ":1: source.url: mysql:// is not a Postgres URL",
        "postgresql://",
    ),
    "text that is no URL": ("source: {url: secret}", ":1: source.url: not a Postgres URL", "postgresql://"),
    "a URL that libpq cannot read": (
        "source: {url: 'postgresql://u:sec%ret@h/d'}",
        ":1: source.url: libpq cannot read this URL",
        "%40",
    ),
    "an unknown option in the URL": (
        "source: {url: 'postgresql://u:secret@h/d?sslmoed=require'}",
        'invalid URI query parameter: "sslmoed"',
        "%40",
    ),
    "a state that is no URL": (
        SOURCE + "state: {url: x}",
        ":2: state.url: not a Postgres URL",
        "postgresql://",
    ),
    "a name no slot can have": (
        "source: {url: postgresql://x/y, name: My-Shop}",
        ":1: source.name: 'My-Shop' cannot name",
        "lower-case",
    ),
    "a table without a schema": (
        "source:\n  url: postgresql://x/y\n  tables:\n  - public.a\n  - orders",
        ":5: source.tables[1]: 'orders' is not a table pattern",
        "public.orders",
    ),
    "only exclusions": (
        "source: {url: postgresql://x/y, tables: ['!public.a']}",
        ":1: source.tables: nothing is included",
        '"*.*"',
    ),
    "an unquoted exclusion": (
        "source:\n  url: postgresql://x/y\n  tables:\n    - public.*\n    - !public.audit\n",
        ":5: source.tables[1]: a value that begins with ! must be quoted",
        'write "!public.audit" with the quotes',
    ),
    "an unquoted star": (
        "source:\n  url: postgresql://x/y\n  tables: [*.*]\n",
        ":3: not valid YAML",
        'must be quoted: "*.*"',
    ),
    "an import": (
        SOURCE + SINK + "    import: true",
        ":5: pipelines.a.import: imports are not available",
        "import: false",
    ),
    "a wrong size": (
        SOURCE + "log: {max_bytes: lots}",
        ":2: log.max_bytes: 'lots' cannot be read",
        "write a size such as 64MiB",
    ),
    "a negative size": (
        SOURCE + "log: {max_bytes: -1}",
        ":2: log.max_bytes: -1 cannot be read",
        "write a size such as 64MiB",
    ),
    "a wrong duration": (
        SOURCE + "log: {retain: soon}",
        ":2: log.retain: 'soon' cannot be read",
        "write a duration such as 200ms",
    ),
    "a wrong boolean": (
        "source: {url: postgresql://x/y, messages: maybe}",
        ":1: source.messages: ",
        "write true or false",
    ),
    "a wrong number": (
        SOURCE + SINK + "    tasks: many",
        ":5: pipelines.a.tasks: ",
        "write a whole number",
    ),
    "no tasks": (
        SOURCE + SINK + "    tasks: 0",
        ":5: pipelines.a.tasks: 0 is too small",
        "at least 1",
    ),
    "a tiny chunk": (
        SOURCE + "log: {chunk_bytes: 1}",
        ":2: log.chunk_bytes: 1 is too small",
        "at least 4096",
    ),
    "a budget below one chunk": (
        SOURCE + "log: {max_bytes: 8KiB}",
        ":2: log: max_bytes (8192) is less than one chunk",
        "raise log.max_bytes",
    ),
    "a list where a mapping belongs": (SOURCE + "pipelines: [a]", ":2: pipelines: ", "write a mapping"),
    "an empty path": (SOURCE + "log: ''", ":2: log.path: '' cannot be read", "write a path or URL"),
    "a pipeline with a wrong name": (
        SOURCE + "pipelines:\n  a b:\n    sink: {type: stdout}",
        ":3: pipelines.a b: 'a b' cannot name",
        "letters",
    ),
    "a pipeline called capture": (
        SOURCE + "pipelines:\n  capture:\n    sink: {type: stdout}",
        "cannot be called 'capture'",
        "another",
    ),
    "a wrong master": (
        SOURCE + "spark: {master: localhost}",
        ":2: spark.master: 'localhost' is not a Spark master",
        "local[2]",
    ),
    "a Spark setting without its prefix": (
        SOURCE + "spark: {executor.memory: 4g}",
        ":2: spark.executor.memory: unknown key",
        "did you mean 'spark.executor.memory'?",
    ),
    "a nested Spark setting": (
        SOURCE + "spark: {spark.executor: {memory: 4g}}",
        ":2: spark.spark.executor: expected one value",
        "flat",
    ),
    "a secret among Spark's settings": (
        SOURCE + "spark: {spark.hadoop.fs.s3a.secret.key: abc}",
        "spark.spark.hadoop.fs.s3a.secret.key: a secret here",
        "environment",
    ),
    "an unset variable": (
        "source:\n  url: ${SOURCE_URL}",
        ":2: source.url: the environment variable SOURCE_URL is not set",
        "export SOURCE_URL=",
    ),
    "an unfinished variable": (
        "source:\n  url: '${SOURCE'",
        ":2: source.url: ${…} does not hold the name",
        "${NAME:-default}",
    ),
    "a key twice": (
        "source:\n  url: postgresql://x/y\n  url: postgresql://x/z",
        ":3: not valid YAML: this key stands twice",
        "keep one",
    ),
    "a tab": ("source:\n\turl: x", ":2: not valid YAML", "spaces, not tabs"),
    "broken YAML": ("source: {url: x", ": not valid YAML", "check the indentation"),
    "a list at the top": ("- a", ":1: expected a mapping of sections, found a list", "source:"),
    "text at the top": ("hello", ":1: expected a mapping of sections, found text", "source:"),
    "a key that is a number": (
        SOURCE + "pipelines:\n  1:\n    sink: {type: stdout}",
        "pipelines.1: a key must be text",
        'write "1"',
    ),
    "two pipelines in one directory": (
        SOURCE + "pipelines:\n  a:\n    sink: {type: files, path: out}\n"
        "  b:\n    sink: {type: files, path: ./x/../out}",
        ":6: pipelines.b.sink: writes to ",
        "a place of its own",
    ),
    "a pipeline inside another one's directory": (
        SOURCE + "pipelines:\n  a:\n    sink: {type: files, path: out}\n"
        "  b:\n    sink: {type: files, path: ./x/../out/lake}",
        ":6: pipelines.b.sink: writes to ",
        "beside the others",
    ),
    "a pipeline around another one's directory": (
        SOURCE + "pipelines:\n  a:\n    sink: {type: files, path: out/deep/lake}\n"
        "  b:\n    sink: {type: files, path: out}",
        ":6: pipelines.b.sink: writes to ",
        "beside the others",
    ),
    "a pipeline under another one's URL": (
        SOURCE + "pipelines:\n  a:\n    sink: {type: files, path: 's3://b/out?region=x'}\n"
        "  b:\n    sink: {type: files, path: 'S3://b//out/./lake'}",
        ":6: pipelines.b.sink: writes to S3://b//out/./lake, inside pipelines.a's s3://b/out",
        "beside the others",
    ),
    "two pipelines on standard output": (
        SOURCE + "pipelines:\n  a:\n    sink: {type: stdout}\n  b:\n    sink: {type: stdout}",
        ":6: pipelines.b.sink: writes to standard output, as pipelines.a does",
        "a place of its own",
    ),
    "credentials in the log's URL": (
        SOURCE + "log: 's3://key:secret@bucket/log?region=x'",
        ":2: log.path: no credentials in the path",
        "environment",
    ),
    "credentials among the options of the log's URL": (
        SOURCE + "log: 'abfs://box@account.dfs.core.windows.net/log?client_secret=secret@'",
        ":2: log.path: no credentials in the path",
        "environment",
    ),
    "credentials in the URL of an output": (
        SOURCE + "pipelines:\n  a:\n    sink: {type: files, path: 's3://key:secret@bucket/out'}",
        ":4: pipelines.a.sink.path: no credentials in the path",
        "environment",
    ),
    "output in the change log of an object store": (
        SOURCE
        + "log: s3://b/log?region=x\npipelines:\n  a:\n    sink: {type: files, path: s3://b/log/out}",
        ":5: pipelines.a.sink: s3://b/log/out is where the change log is (s3://b/log)",
        "somewhere else",
    ),
    "standard output of a cluster whose log is in an object store": (
        SOURCE + "log: s3://b/log\nspark: {master: yarn}\n" + SINK,
        "pipeline 'a': stdout's lines are put together beside the change log",
        "local[*]",
    ),
    "output in the change log": (
        SOURCE + "log: data\npipelines:\n  a:\n    sink: {type: files, path: data/out}",
        ":5: pipelines.a.sink: ",
        "somewhere else",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_with_line_field_and_remedy(case: str, tmp_path: Path) -> None:
    text, said, remedy = CASES[case]
    error = refused(tmp_path, text)
    assert said in error.message
    assert remedy in error.hint
    assert "secret@" not in error.message + error.hint
    assert error.message.startswith(str(tmp_path / "runnel.yaml"))


@pytest.mark.parametrize("path", ["link", "link/lake"])
def test_a_link_to_another_pipelines_place_is_refused(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    monkeypatch.chdir(tmp_path)
    error = refused(
        tmp_path,
        SOURCE + "pipelines:\n  a:\n    sink: {type: files, path: out}\n"
        f"  b:\n    sink: {{type: files, path: {path}}}",
    )
    assert ":6: pipelines.b.sink: writes to " in error.message


def test_the_first_problem_of_the_file_comes_first_and_the_rest_is_counted(tmp_path: Path) -> None:
    error = refused(tmp_path, "log: {max_bytes: lots}\nsource: {url: postgresql://x/y, ack: no}\nfoo: 1")
    assert ":1: log.max_bytes" in error.message
    assert "(then 2 more to mend)" in error.hint


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, SOURCE, {"RUNNEL_SOURCE_ACK": "later"})
    assert error.message == "RUNNEL_SOURCE_ACK: source.ack: 'later' is not allowed"


def test_a_variable_that_looks_like_a_slip_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, SOURCE, {"RUNNEL_SOURCE_ULR": "x"})
    assert "RUNNEL_SOURCE_ULR sets nothing" in error.message
    assert error.hint == "did you mean RUNNEL_SOURCE_URL?"


def test_a_wrong_flag_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, SOURCE, overrides={"source.name": "A B"})
    assert error.message.startswith("command line: source.name: 'A B'")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml: no such configuration file") as caught:
        load(tmp_path / "nowhere.yaml", environ={})
    assert "after -c" in caught.value.hint


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path, environ={})


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runnel.yaml"
    path.write_bytes(b"source: {url: \xff\xfe}")
    with pytest.raises(UsageError, match="not UTF-8"):
        load(path, environ={})


def test_without_file_and_flags_the_user_hears_how_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"runnel\.yaml does not exist here") as caught:
        load(None, environ={})
    assert "--source URL" in caught.value.hint


def test_of_a_chosen_sink_only_its_own_values_are_allowed(tmp_path: Path) -> None:
    error = refused(tmp_path, SOURCE + "pipelines:\n  a:\n    sink: {type: stdout, format: csv}")
    assert error.hint == "allowed: jsonl"
