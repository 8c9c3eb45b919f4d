"""Values through capture's own stream, whatever the database sets for its sessions: log in, JSON out."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from captured import Captured
from runnel.changes.decode import decode
from runnel.log import open_log
from runnel.marshal.json import lines
from runnel.postgres.lsn import Lsn
from servers import Database, MakeServer, await_condition
from slots import SETTINGS
from values import check_row, fill_every, make_every

ODD_SETTINGS = {
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
    "timezone": "Asia/Kathmandu",
    "extra_float_digits": "-5",
    "client_encoding": "LATIN1",
}


def delivered(c: Captured) -> list[str]:
    log, out = open_log(c.path), []
    first = log.usage().first
    for ref in log.chunks(first) if first is not None else ():
        with closing(log.open(ref.name)) as reader:
            for window in decode(reader, Lsn(0)):
                out += bytes(lines(window).data).decode().splitlines()
    return out


def check_values(url: str, directory: Path) -> None:
    with psycopg.connect(url, autocommit=True, client_encoding="utf8") as connection:
        connection.execute(SETTINGS)
        expected = make_every(connection)
        for name, value in ODD_SETTINGS.items():
            database = psycopg.sql.Identifier(connection.info.dbname)
            connection.execute(
                psycopg.sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                    database, psycopg.sql.Identifier(name), value
                )
            )
        c = Captured(url, directory, {}, {})
        with c.running():
            fill_every(connection)
            await_condition(lambda: delivered(c), what="the row in the log")
        [line] = delivered(c)
    check_row(line, expected)


def test_every_value_is_captured_as_it_is_whatever_the_database_sets(pg: Database, tmp_path: Path) -> None:
    check_values(pg.url, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("version", [13, 14, 15, 16, 17])
def test_every_value_is_captured_as_it_is_on_every_version(
    make_server: MakeServer, tmp_path: Path, version: int
) -> None:
    check_values(make_server(version).url(), tmp_path)
