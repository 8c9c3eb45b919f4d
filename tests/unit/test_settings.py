"""Values as users write them: sizes, durations, paths, secrets."""

from __future__ import annotations

import os

import pytest
from pydantic import ValidationError

from runnel.settings import SECRET_NAME, Duration, Path, Secret, Settings, Size, show_size
from runnel.sinks.registry import SINKS


class Sample(Settings):
    size: Size = 1
    time: Duration = 1
    path: Path = "./x"
    secret: Secret | None = None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20),
        ("1GB", 10**9),
        ("1.5 KiB", 1536),
        (4096, 4096),
        ("4096", 4096),
        ("8mib", 8 << 20),
    ],
)
def test_a_size_is_read_with_its_unit(text: object, size: int) -> None:
    assert Sample.model_validate({"size": text}).size == size


@pytest.mark.parametrize("text", ["", "x", "-1", -1, "5 parsecs", True, None, [], 1.5])
def test_anything_else_is_not_a_size(text: object) -> None:
    with pytest.raises(ValidationError, match="64MiB"):
        Sample.model_validate({"size": text})


@pytest.mark.parametrize(
    ("text", "seconds"), [("200ms", 0.2), ("5s", 5), ("1h", 3600), ("7d", 604800), (0.25, 0.25), ("3", 3)]
)
def test_a_duration_is_read_with_its_unit(text: object, seconds: float) -> None:
    assert Sample.model_validate({"time": text}).time == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", -1, "1 fortnight", True, float("inf"), float("nan")])
def test_anything_else_is_not_a_duration(text: object) -> None:
    with pytest.raises(ValidationError, match="200ms"):
        Sample.model_validate({"time": text})


def test_a_relative_path_is_seen_from_the_working_directory() -> None:
    assert Sample.model_validate({"path": "out"}).path == os.path.join(os.getcwd(), "out")
    assert Sample.model_validate({"path": "file:///data/x/"}).path == "/data/x"
    assert Sample.model_validate({"path": "s3://bucket/x/"}).path == "s3://bucket/x"


def test_a_secret_does_not_print_itself() -> None:
    sample = Sample.model_validate({"secret": "hunter2"})
    assert sample.secret is not None
    assert sample.secret.get_secret_value() == "hunter2"
    for shown in (repr(sample), str(sample), str(sample.model_dump()), sample.model_dump_json()):
        assert "hunter2" not in shown


def test_a_size_is_shown_in_its_largest_whole_unit() -> None:
    assert [show_size(8 << 20), show_size(10 << 30), show_size(1000), show_size(0)] == [
        "8MiB",
        "10GiB",
        1000,
        0,
    ]


@pytest.mark.parametrize("kind", SINKS)
def test_each_field_of_a_sink_has_a_description(kind: str) -> None:
    for name, field in SINKS[kind].settings.model_fields.items():
        assert field.description, f"{kind}.{name}"
    assert SINKS[kind].settings.model_fields["type"].default == kind


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("spark.hadoop.fs.s3a.secret.key", True),
        ("spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net", True),
        ("spark.hadoop.fs.azure.account.oauth2.client.secret.shop.dfs.core.windows.net", True),
        ("spark.hadoop.fs.azure.sas.fixed.token.shop.dfs.core.windows.net", True),
        ("spark.hadoop.fs.azure.account.key.filestore1.dfs.core.windows.net", True),
        ("spark.hadoop.fs.azure.sas.token.provider.type.shop.dfs.core.windows.net", False),
        ("spark.hadoop.fs.azure.account.keyprovider.shop.dfs.core.windows.net", False),
        ("spark.hadoop.fs.azure.account.auth.type.shop.dfs.core.windows.net", False),
        ("spark.kubernetes.driver.secrets.store", False),
    ],
)
def test_a_setting_that_holds_a_secret_is_known_by_its_name(name: str, secret: bool) -> None:
    assert bool(SECRET_NAME.search(name)) is secret
