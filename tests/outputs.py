"""A files sink without Spark, for tests that look at its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from contract.sinks import LINEAGE, ORIGIN, batch_of
from runnel.postgres.lsn import Lsn
from runnel.progress.position import Position
from runnel.sinks.api import Attempt, Batch, Receipt
from runnel.sinks.files.settings import FilesSettings
from runnel.sinks.registry import SINKS, SinkContext
from windows import Transaction, window


class Output:
    """One task a batch."""

    def __init__(self, directory: Path, pipeline: str = "p", **settings: Any) -> None:
        self.root = directory
        self.settings = FilesSettings(path=str(directory), **settings)
        self.sink = SINKS["files"].sink(self.settings, SinkContext(pipeline, ""))
        self.at = self.sink.open(Position(LINEAGE, 1, ORIGIN)).lsn
        self.rejects: list[Any] = []
        self.tasks = 0

    def receipt(self, *transactions: Transaction) -> tuple[Batch, list[Receipt]]:
        batch = batch_of(self.at, transactions)
        self.tasks += 1
        writer = SINKS["files"].writer(
            self.sink.task(), Attempt(batch.start, batch.end, 0, f"{self.tasks}")
        )
        for transaction in transactions:
            self.rejects += writer.write(window(transaction))
        return batch, [Receipt(0, 1, writer.finish())]

    def write(self, *transactions: Transaction) -> Lsn:
        batch, receipts = self.receipt(*transactions)
        durable = self.sink.commit(batch, receipts)
        self.at = batch.end
        return durable

    def add(self, *changes: Any) -> Lsn:
        return self.write(Transaction(int(self.at), changes))

    def files(self) -> list[str]:
        found = (p for p in self.root.rglob("*") if p.is_file())
        return sorted(
            str(p.relative_to(self.root)) for p in found if "_runnel" not in p.relative_to(self.root).parts
        )

    def staged(self) -> list[Path]:
        return [p for p in (self.root / "_runnel" / "stage").rglob("*") if p.is_file()]

    def rows(self, name: str) -> list[Any]:
        return [json.loads(line) for line in (self.root / name).read_text().splitlines()]
