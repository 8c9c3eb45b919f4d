"""What `_runnel/position.json` says: how far the output is durable, and which bytes of it count.

The record is the truth: a file with a number of `next` or above, and every byte of an open file past
its length here, is not committed. Replacing the record is the commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import Refused
from ...postgres.lsn import Lsn
from ...progress.position import Position
from ..api import Batch, Name

VERSION = 1


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that still grows."""

    name: str
    bytes: int
    """Committed length."""
    opened: float
    """Seconds since 1970: it rolls by age."""
    schema: str = ""
    """What its header says, as a fingerprint: other columns go to another file."""


@dataclass(frozen=True, slots=True)
class Record:
    position: Position
    kept: Mapping[str, str]
    """Settings that must not change under an output that exists."""
    pipeline: str = ""
    """Whose output it is; an older record names nobody, and becomes theirs who find it."""
    next: int = 1
    """Number of the next file."""
    open: dict[str, OpenFile] = field(default_factory=dict)
    """By folder."""
    redelivered: tuple[Name, ...] = ()
    """Dead letters that were delivered again, until the state has forgotten them."""

    def encode(self) -> bytes:
        value = {
            "version": VERSION,
            "position": self.position.to_json(),
            "settings": dict(self.kept),
            "pipeline": self.pipeline,
            "next": self.next,
            "open": {
                folder: {"name": f.name, "bytes": f.bytes, "opened": f.opened, "schema": f.schema}
                for folder, f in self.open.items()
            },
            "redelivered": [[str(lsn), seq] for lsn, seq in self.redelivered],
        }
        return json.dumps(value, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, where: str) -> Record:
        try:
            value: dict[str, Any] = json.loads(data)
            if value["version"] != VERSION:
                raise Refused(
                    f"{where} is of version {value['version']}, which this Runnel does not know",
                    hint="use the Runnel version that wrote it, or a later one",
                )
            return cls(
                Position.from_json(value["position"]),
                value["settings"],
                value.get("pipeline", ""),
                value["next"],
                {folder: OpenFile(**f) for folder, f in value["open"].items()},
                tuple((Lsn.parse(lsn), seq) for lsn, seq in value.get("redelivered", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(
                f"{where} cannot be read: {error}",
                hint="restore it from a backup, or give the pipeline a new path",
            ) from error

    def taken_over(self, position: Position, kept: Mapping[str, str], pipeline: str, where: str) -> Record:
        """The record under the owner of `position`; `Refused` if it cannot be its own."""
        ours, theirs = self.position.lineage, position.lineage
        if not position.owns(ours):
            raise Refused(
                f"{where} holds the output of slot {ours.slot} on system {ours.system_id} timeline"
                f" {ours.timeline}, not of slot {theirs.slot} on system {theirs.system_id} timeline"
                f" {theirs.timeline}",
                hint="give the pipeline a new path, or move the old output away",
            )
        if self.pipeline not in ("", pipeline):
            raise Refused(
                f"{where} holds the output of pipeline {self.pipeline!r}, not of {pipeline!r}",
                hint=f"give pipeline {pipeline!r} a path of its own, or call it {self.pipeline!r} again",
            )
        if self.position.epoch > position.epoch:
            raise Refused(
                f"{where} has a later owner (epoch {self.position.epoch}, ours is {position.epoch})",
                hint="another process runs this pipeline: stop one of them",
            )
        for name, value in kept.items():
            if self.kept.get(name) != value:
                raise Refused(
                    f"{where} was begun with {name} {self.kept.get(name)}, now it is {value}",
                    hint=f"set `{name}: {self.kept.get(name)}`, or give the pipeline a new path",
                )
        ours_now = replace(position, lsn=self.position.lsn, tables=self.position.tables)
        return replace(self, position=ours_now, pipeline=pipeline)

    def at(self, lsn: Lsn) -> Record:
        return replace(self, position=self.position.at(lsn))


def already_there(lsn: Lsn, batch: Batch, where: str) -> bool:
    """The rule of every commit: at the batch's start it applies, at or past its end it is skipped."""
    if lsn == batch.start:
        return batch.end == batch.start
    if lsn >= batch.end:
        return True
    raise Refused(
        f"{where} is at {lsn}, but the batch covers {batch.start} to {batch.end}",
        hint="start the pipeline again: it begins where its target stands",
    )
