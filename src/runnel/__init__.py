"""Runnel: Postgres change data capture on Spark."""

__version__ = "0.1.0"
