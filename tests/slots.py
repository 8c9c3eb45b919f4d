"""A slot read by SQL, without capture: what a server sends, as a chunk and as the default JSON."""

from __future__ import annotations

import struct
from typing import Any

import psycopg

from changefeed import MemoryChunk
from runnel.capture.protocol import parse_relation
from runnel.capture.relations import Catalogue
from runnel.changes.decode import decode
from runnel.changes.relation import Relation
from runnel.marshal.json import lines
from runnel.postgres.lsn import Lsn

Connection = psycopg.Connection[Any]

SETTINGS = (
    "SET datestyle = ISO; SET timezone = UTC; SET intervalstyle = postgres; "
    "SET extra_float_digits = 3; SET bytea_output = hex"
)


def subscribe(connection: Connection) -> None:
    connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
    connection.execute(
        "SELECT pg_create_logical_replication_slot('decode_' || current_database(), 'pgoutput')"
    )


def received(connection: Connection, **options: str) -> list[tuple[Lsn, bytes]]:
    connection.execute(SETTINGS)
    chosen = {"proto_version": "1", "publication_names": "p", **options}
    rows = connection.execute(
        "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes("
        "'decode_' || current_database(), NULL, NULL, VARIADIC %s)",
        [[text for option in chosen.items() for text in option]],
    ).fetchall()
    return [(Lsn.parse(lsn), data) for lsn, data in rows]


def chunk_of(url: str, messages: list[tuple[Lsn, bytes]], **header: Any) -> MemoryChunk:
    """These messages as a chunk, their relations as capture describes them."""
    catalogue = Catalogue(lambda: psycopg.connect(url, autocommit=True))
    frames: list[bytes] = []
    changed: list[tuple[int, Relation]] = []
    for lsn, message in messages:
        if message[:1] == b"R":
            parsed = parse_relation(memoryview(message), streamed=header.get("streamed", False))
            changed.append((len(frames), catalogue.describe([parsed], [])[0]))
        frames.append(b"w" + struct.pack(">QQq", lsn, lsn, 0) + message)
    catalogue.close()
    return MemoryChunk(frames, [], changed, [len(frames) // 2], **header)


def written(url: str, messages: list[tuple[Lsn, bytes]], **header: Any) -> list[str]:
    found: list[str] = []
    for window in decode(chunk_of(url, messages, **header), Lsn(0)):
        found += bytes(lines(window).data).decode().splitlines()
    return found
