"""The pages made from the models are those that are committed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from runnel.bench.page import page as benchmarks
from runnel.config import Batch, Config, Log, Pipeline, Source, Spark, State
from runnel.config.reference import json_schema, page, schema_text
from runnel.sinks.registry import SINKS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_configuration_page_is_up_to_date() -> None:
    assert (DOCS / "configuration.md").read_text() == page(), "run `make generate`"


def test_the_json_schema_is_up_to_date() -> None:
    assert (DOCS / "runnel.schema.json").read_text() == schema_text(), "run `make generate`"


def test_the_benchmark_page_shows_the_stored_figures() -> None:
    stored = json.loads((DOCS / "benchmarks.json").read_text())
    assert (DOCS / "benchmarks.md").read_text() == benchmarks(stored), "run `make generate`"


@pytest.mark.parametrize("model", [Config, Source, State, Log, Pipeline, Batch, Spark])
def test_each_field_has_one_sentence(model: type[BaseModel]) -> None:
    assert model.__doc__
    for name, field in model.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_every_key_of_every_model_stands_in_the_page() -> None:
    text = page()
    models: list[type[BaseModel]] = [Source, State, Log, Pipeline, Batch, Spark]
    models += [sink.settings for sink in SINKS.values()]
    for model in models:
        for name, field in model.model_fields.items():
            assert f"| `{field.alias or name}` |" in text


def test_the_schema_knows_what_the_loader_accepts() -> None:
    schema = json_schema()
    assert {"type": "string"} in schema["properties"]["log"]["anyOf"]
    assert schema["$defs"]["Spark"]["additionalProperties"] is False
    assert "import" in schema["$defs"]["Pipeline"]["properties"]
    assert "hunter" not in json.dumps(schema)
    for sink in SINKS.values():
        assert "type" in schema["$defs"][sink.settings.__name__]["required"]
