"""`runnel version`: this version and those of what it stands on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import typer

from .. import __version__


def version() -> None:
    try:
        spark = installed("pyspark")
    except PackageNotFoundError:
        spark = "missing"
    typer.echo(f"runnel {__version__} (Python {platform.python_version()}, PySpark {spark})")
