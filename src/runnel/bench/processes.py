"""CPU and memory of a process tree by role, read from /proc while it runs.

A role is what a process does for Runnel (capture, driver, jvm, worker, planner). CPU of processes that
ended between two looks is kept at its last reading, so a look every 50 ms loses at most that much.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field

import psutil


def role(command: list[str]) -> str:
    text = " ".join(command)
    if "java" in (command[0] if command else ""):
        return "jvm"
    if "pyspark.daemon" in text or "pyspark/daemon" in text:
        return "workers"
    if "python_streaming_source_runner" in text or "streaming_source" in text:
        return "planner"
    words = set(command)
    if "capture" in words:
        return "capture"
    if "pipeline" in words:
        return "driver"
    if "run" in words:
        return "supervisor"
    return "other"


@dataclass
class Watch:
    """Samples the trees under `roots` until stopped."""

    roots: list[int]
    interval: float = 0.05
    _cpu: dict[int, float] = field(default_factory=dict)
    _roles: dict[int, str] = field(default_factory=dict)
    _peak: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(self.interval)

    def look(self) -> None:
        memory: dict[str, int] = defaultdict(int)
        for root in self.roots:
            try:
                parent = psutil.Process(root)
                family = [parent, *parent.children(recursive=True)]
            except psutil.Error:
                continue
            for process in family:
                try:
                    name = self._roles.get(process.pid)
                    if name in (None, "other"):
                        name = self._roles[process.pid] = role(process.cmdline())
                    times = process.cpu_times()
                    self._cpu[process.pid] = times.user + times.system
                    memory[name or "other"] = max(memory[name or "other"], process.memory_info().rss)
                except psutil.Error:
                    continue
        for name, size in memory.items():
            self._peak[name] = max(self._peak[name], size)

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU by role, up to the last look."""
        total: dict[str, float] = defaultdict(float)
        for pid, seconds in list(self._cpu.items()):
            total[self._roles.get(pid, "other")] += seconds
        return dict(total)

    def peak(self) -> dict[str, int]:
        """Largest resident size of any one process of each role, bytes."""
        return dict(self._peak)
