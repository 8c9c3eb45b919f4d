"""Configuration: typed models, a file with variables, environment and flags; secrets stay masked."""

from ..redaction import redact
from .flags import sink_from_flag
from .loading import DEFAULT_FILE, effective, load, write_effective
from .models import Batch, Config, Log, Pipeline, Source, Spark, State

__all__ = [
    "DEFAULT_FILE",
    "Batch",
    "Config",
    "Log",
    "Pipeline",
    "Source",
    "Spark",
    "State",
    "effective",
    "load",
    "redact",
    "sink_from_flag",
    "write_effective",
]
