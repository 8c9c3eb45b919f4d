"""An encrypted source whose certificate is verified, and one that cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from history import Oracle, assert_equal
from product import Runnel
from runnel.demo.server import server_user
from servers import Database, MakeServer, TlsFront
from traffic import SCHEMA, Traffic

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with the command openssl"
)


@pytest.fixture
def make_certificate(scratch: Path) -> Callable[[], tuple[Path, Path]]:
    """A certificate for 127.0.0.1 that is its own authority, and its key, which the server may read."""

    def make() -> tuple[Path, Path]:
        stem = scratch / f"tls-{uuid4().hex[:8]}"
        certificate, key = stem.with_suffix(".crt"), stem.with_suffix(".key")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=source",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        key.chmod(0o600)
        user = server_user()
        if user is not None:
            os.chown(key, user.pw_uid, user.pw_gid)
        certificate.chmod(0o644)
        return certificate, key

    return make


def test_a_verified_connection_delivers_and_an_unknown_authority_is_refused(
    make_runnel: Callable[..., Runnel],
    pg: Database,
    make_certificate: Callable[[], tuple[Path, Path]],
) -> None:
    certificate, key = make_certificate()
    front = TlsFront(pg.server.host, pg.server.port, certificate, key)  # the packaged server has no TLS
    pg.execute(SCHEMA)
    runnel = make_runnel(f"{front.url(pg.url)}?sslmode=verify-full&sslrootcert={certificate}")
    try:
        deliver(runnel, pg.url)
        assert {"runnel shop capture", "runnel shop tables"} <= front.applications
        assert front.unencrypted == 0
        stranger, _ = make_certificate()
        refuse(
            runnel, f"{front.url(pg.url)}?sslmode=verify-full&sslrootcert={stranger}", pg.server.password
        )
    finally:
        front.close()


@pytest.mark.long
def test_the_server_sees_no_connection_without_tls(
    make_runnel: Callable[..., Runnel],
    make_server: MakeServer,
    make_certificate: Callable[[], tuple[Path, Path]],
) -> None:
    certificate, key = make_certificate()
    server = make_server("18-maven", ssl="on", ssl_cert_file=certificate, ssl_key_file=key)
    url = f"{server.url()}?sslmode=verify-full&sslrootcert="
    seen: list[tuple[str, bool]] = []
    with server.connect() as connection:
        connection.execute(SCHEMA)

        def look() -> None:
            seen.extend(
                connection.execute(
                    "select application_name, ssl from pg_stat_ssl join pg_stat_activity using (pid)"
                    " where application_name like 'runnel%'"
                ).fetchall()
            )

        runnel = make_runnel(f"{url}{certificate}")
        deliver(runnel, server.url(), look)
    assert ("runnel shop capture", True) in seen
    assert all(encrypted for _, encrypted in seen)
    stranger, _ = make_certificate()
    refuse(runnel, f"{url}{stranger}", server.password)


def deliver(runnel: Runnel, url: str, look: Callable[[], None] = lambda: None) -> None:
    runnel.run("init")
    oracle = Oracle(url)
    process = runnel.start("run")
    with Traffic(url, seed=29, count=100) as traffic:
        traffic.finish()
    runnel.await_delivery()
    look()
    runnel.stop(process)
    assert_equal(oracle.entries(), runnel.lines())


def refuse(runnel: Runnel, url: str, password: str) -> None:
    """The server shows a certificate of an authority that Runnel was not told to trust."""
    runnel.config["source"]["url"] = url
    runnel.write()
    for words in (("run",), ("capture",), ("status",)):
        refused = runnel.run(*words, code=1, timeout=30)
        what, remedy = refused.stderr.splitlines()[-2:]
        assert "certificate verify failed" in what
        assert "sslrootcert" in remedy
        assert password not in refused.stderr
        assert "Traceback" not in refused.stderr
