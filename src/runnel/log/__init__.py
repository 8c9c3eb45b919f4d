"""The change log: chunks, and the places they are kept. `open_log` is the way in."""

from __future__ import annotations

from .api import ChangeLog, LogSettings


def open_log(path: str, settings: LogSettings | None = None) -> ChangeLog:
    """The log at a directory or URL, whether or not it exists yet; the first append makes it.

    A path and file:// are a local directory. Any other scheme is opened by pyarrow, with the options
    in the URL (`s3://bucket/log?endpoint_override=…`) and credentials from the environment.
    """
    from urllib.parse import unquote, urlsplit

    from .directory import DirectoryLog
    from .local import LocalStore

    settings = settings or LogSettings(path)
    scheme, separator, _ = path.partition("://")
    if not separator:
        return DirectoryLog(LocalStore(path), settings)
    if scheme == "file":
        return DirectoryLog(LocalStore(unquote(urlsplit(path).path)), settings)
    from .objects import open_store

    return DirectoryLog(open_store(path), settings)


__all__ = ["ChangeLog", "LogSettings", "open_log"]
