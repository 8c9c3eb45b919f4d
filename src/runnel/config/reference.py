"""The reference of everything that can be configured, made from the models: a page for people, a JSON
Schema for editors. `make generate` writes both; a test holds that they are up to date."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..settings import show_size
from ..sinks.registry import SINKS
from .models import Batch, Config, Log, Pipeline, Source, Spark, State

SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"
_VARIABLE = {"type": "string", "pattern": r"\$\{"}

INTRODUCTION = """\
# Configuration

<!-- Generated from the models in src/runnel/config by `make generate`. -->

Runnel reads `./runnel.yaml`, or the file named by `runnel -c FILE`.

- `${VAR}` and `${VAR:-default}` are expanded in every value; a literal `${` is written `$${`.
- An environment variable `RUNNEL_<SECTION>_<KEY>` overrides the file: `RUNNEL_SOURCE_URL`,
  `RUNNEL_SOURCE_NAME`, `RUNNEL_STATE_URL`, `RUNNEL_LOG` (the log's path), `RUNNEL_LOG_MAX_BYTES`,
  `RUNNEL_SPARK_MASTER`. A flag overrides both.
- Sizes are written `64MiB`, `1GB` or as a number of bytes; durations `200ms`, `5s`, `10m`, `1h`, `7d` or
  as a number of seconds.
- Relative paths are seen from the directory in which the command is started.
- An unknown key or a wrong value is refused (exit code 2) with the file's line, the field, what is allowed
  and the nearest choice. So are two pipelines that would write to the same place.
- Passwords are masked wherever a configuration is shown.

For completion and checks in an editor, begin the file with

```yaml
# yaml-language-server: $schema=docs/runnel.schema.json
```
"""


def page() -> str:
    """docs/configuration.md."""
    schema = json_schema()
    parts = [INTRODUCTION]
    for title, model in (
        ("source", Source),
        ("state", State),
        ("log", Log),
        ("pipelines.&lt;name&gt;", Pipeline),
        ("pipelines.&lt;name&gt;.batch", Batch),
        ("spark", Spark),
    ):
        parts.append(_section(f"`{title}`" if "&" not in title else f"<code>{title}</code>", model, schema))
    for kind, sink in SINKS.items():
        parts.append(_section(f"Sink `{kind}`", sink.settings, schema))
    return "\n".join(parts)


def json_schema() -> dict[str, Any]:
    schema = Config.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    for model in (schema, *definitions.values()):
        for field in model.get("properties", {}).values():
            _allow_variables(field)
    for sink in SINKS.values():
        definitions[sink.settings.__name__].setdefault("required", []).insert(0, "type")
    definitions["Spark"]["patternProperties"] = {r"^spark\.": {"type": ["string", "number", "boolean"]}}
    definitions["Spark"]["additionalProperties"] = False
    definitions["Source"]["properties"]["tables"]["anyOf"] = [
        {"type": "array", "items": definitions["Source"]["properties"]["tables"].pop("items")},
        {"type": "string"},
    ]
    del definitions["Source"]["properties"]["tables"]["type"]
    log = schema["properties"]["log"]
    log["anyOf"] = [{"type": "string"}, {"$ref": log.pop("$ref")}]
    return {"$schema": SCHEMA_URL, **schema, "title": "runnel.yaml"}


def schema_text() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _allow_variables(field: dict[str, Any]) -> None:
    """A value of any kind may be written as ${VAR}."""
    if field.get("type") in ("integer", "boolean", "number") or "enum" in field:
        kept = {key: field.pop(key) for key in ("type", "enum", "minimum") if key in field}
        field["anyOf"] = [kept, _VARIABLE]
    elif any(option.get("type") == "integer" or "enum" in option for option in field.get("anyOf", ())):
        field["anyOf"].append(_VARIABLE)


def _section(title: str, model: type[BaseModel], schema: dict[str, Any]) -> str:
    properties = schema["$defs"][model.__name__]["properties"]
    rows = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        sentence = " ".join((field.description or "").split())
        cells = f"`{key}`", _type(properties[key]), _default(name, field, properties[key]), sentence
        rows.append(f"| {' | '.join(cells)} |")
    if model is Spark:
        rows.append("| `spark.*` | text | | Any setting of Spark, as it is; none that holds a secret. |")
    head = (
        f"## {title}\n\n{(model.__doc__ or '').strip()}\n\n| key | type | default | |\n|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _type(field: dict[str, Any]) -> str:
    if "oneOf" in field:
        return "one of the sinks below"
    options = [option for option in field.get("anyOf", [field]) if option != _VARIABLE]
    names = [_type_name(option) for option in options if option.get("type") != "null"]
    return " or ".join(dict.fromkeys(names))


def _type_name(option: dict[str, Any]) -> str:
    if "enum" in option:
        return ", ".join(f"`{choice}`" for choice in option["enum"])
    if "const" in option:
        return f"`{option['const']}`"
    if "$ref" in option:
        return "mapping"
    title = option.get("title", "")
    if title in {"size", "duration", "path or URL", "secret", "Postgres URL"}:
        return str(title)
    return {"array": "list", "string": "text", "boolean": "`true`, `false`", "integer": "number"}.get(
        option.get("type", ""), str(option.get("type", ""))
    )


def _default(name: str, field: FieldInfo, described: dict[str, Any]) -> str:
    if field.is_required() or name == "type":
        return "**required**"
    value = field.default
    if field.default_factory is not None or value is None:
        return ""
    kinds = _type(described)
    if kinds == "size":
        return f"`{show_size(value)}`"
    if kinds == "duration":
        return f"`{_show_duration(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{json.dumps(list(value)) if isinstance(value, tuple) else value}`"


def _show_duration(seconds: float) -> str:
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= factor and seconds % factor == 0:
            return f"{round(seconds / factor)}{unit}"
    return f"{round(seconds * 1000)}ms" if seconds else "0"
