"""The demo and the benchmark bring their own server, and never meet the user's."""

from __future__ import annotations

from runnel.demo.apart import forget_databases


def test_nothing_that_leads_to_another_database_is_left_and_the_rest_stays() -> None:
    environment = {
        "RUNNEL_SOURCE_URL": "postgresql://me@db/shop",
        "RUNNEL_LOG": "elsewhere",
        "RUNNEL_STATE_URL": "postgresql://me@db/state",
        "PGHOSTADDR": "192.0.2.1",
        "PGSERVICE": "shop",
        "RUNNEL_DEBUG": "1",
        "PATH": "/bin",
        "JAVA_HOME": "/java",
    }
    forget_databases(environment)
    assert environment == {"RUNNEL_DEBUG": "1", "PATH": "/bin", "JAVA_HOME": "/java"}
