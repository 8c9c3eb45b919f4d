"""Log lines on stderr, for people or for machines; standard output belongs to the command's result.

Every line passes through `redact`. In JSON, what a caller gives as `extra={"fields": {…}}` stands beside
the message; for people it follows as key=value.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from ..redaction import redact
from .invocation import LogFormat


class HumanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        text = f"{clock} {_who(record)}: {level}{record.getMessage()}{fields}"
        return redact(text + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""))


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        whole, micro = divmod(round(record.created * 1_000_000), 1_000_000)
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{micro:06d}Z",
            "level": record.levelname.lower(),
            "from": _who(record),
            "message": redact(record.getMessage()),
        }
        line |= {
            key: redact(value) if isinstance(value, str) else value
            for key, value in _fields(record).items()
        }
        if record.exc_info:
            line["traceback"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False)


def setup_logging(form: LogFormat, *, debug: bool = False) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("runnel").setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger("py4j").setLevel(logging.ERROR)  # tells of each broken socket at a normal stop


def _who(record: logging.LogRecord) -> str:
    return record.name.removeprefix("runnel.").partition(".")[0]


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}
