"""One table out of a change log, as Spark's workers read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from changefeed import Change, Transaction, Value, encode, relation
from runnel.errors import RunnelError
from runnel.log import open_log
from runnel.log.api import ChunkHeader, Filled, Lineage
from runnel.postgres.lsn import Lsn
from runnel.spark import views
from runnel.spark.admission import Share


def test_tables_whose_names_hold_dots_are_read_apart(tmp_path: Path) -> None:
    tables = [
        relation(oid, name, [("id", 23)], schema=schema)
        for oid, schema, name in ((100, "a.b", "c"), (101, "a", "b.c"))
    ]
    rows = [Change("I", table, new=[Value(str(n), str(n))]) for n, table in enumerate(tables)]
    made = encode([Transaction(500, 7, 1_763_448_180_000_000, rows)])
    log = open_log(str(tmp_path))
    writer = log.writer()
    writer.write(b"".join(made.frames), np.array([len(frame) for frame in made.frames], np.int64))
    lineage = Lineage("7", 1, "shop_00000000")
    log.append([Filled(writer, ChunkHeader(lineage, 1, Lsn(16), Lsn(600), relations=tuple(tables)))])
    share = Share(0, Lsn(16), Lsn(600), tuple(ref.name for ref in log.chunks(Lsn(16))), 2, 0)

    def ids(table: str) -> list[int]:
        options = {"log": str(tmp_path), "table": table}
        target = pa.schema([("id", pa.int64())])
        return [row for batch in views.read(options, target, share) for row in batch["id"].to_pylist()]

    assert ids('"a.b".c') == ids('"a.b"."c"') == [0]
    assert ids('a."b.c"') == [1]
    with pytest.raises(RunnelError, match=r"no change of table 'a\.b\.c'"):
        views.schema({"log": str(tmp_path), "table": "a.b.c"})
