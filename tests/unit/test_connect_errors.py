"""What libpq says when it cannot connect: what lasts ends a run, what may heal is tried again."""

from __future__ import annotations

import psycopg
import pytest

from runnel.errors import Kind
from runnel.postgres.connect import connect_error, parse_url, without_secrets

HERE = 'connection to server at "db" (10.0.0.1), port 5432 failed: '


@pytest.mark.parametrize(
    "said",
    [
        "SSL SYSCALL error: Connection reset by peer",
        "SSL SYSCALL error: EOF detected",
        "SSL connection has been closed unexpectedly",
        "SSL error: unexpected eof while reading",
        "SSL error: tlsv1 alert internal error",
        # sslmode=prefer: the second attempt, without TLS, is not what went wrong
        "SSL SYSCALL error: Connection reset by peer\n"
        + HERE
        + 'FATAL:  no pg_hba.conf entry for host "10.0.0.2", user "u", database "d", no encryption',
    ],
)
def test_a_broken_tls_connection_may_heal(said: str) -> None:
    assert connect_error(psycopg.OperationalError(HERE + said), "postgresql://db/d").kind is Kind.TRANSIENT


@pytest.mark.parametrize(
    "said",
    [
        "server does not support SSL, but SSL was required",
        "received invalid response to SSL negotiation: H",
        "SSL error: certificate verify failed",
        'root certificate file "/ca/root.crt" does not exist',
        'could not read root certificate file "/ca.pem": no certificate or crl found',
        'server certificate for "other" does not match host name "db"',
        "host name must be specified for a verified SSL connection",
        'private key file "/k.pem" has group or world access',
        "FATAL:  connection requires a valid client certificate",
        "SSL error: tlsv13 alert certificate required",
        "SSL error: tlsv1 alert unknown ca",
        "SSL error: sslv3 alert handshake failure",
        "SSL error: unsupported protocol",
        'weak sslmode "prefer" may not be used with sslrootcert=system (use "verify-full")',
    ],
)
def test_what_is_wrong_with_tls_for_good_ends_the_run_with_a_remedy(said: str) -> None:
    error = connect_error(psycopg.OperationalError(HERE + said), "postgresql://db/d")
    assert error.kind is Kind.FAILED
    assert error.hint


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://db/shop", "postgresql://db/shop"),
        (
            "postgresql://me:pa55@db:5433/shop?sslmode=verify-full&sslrootcert=/a/ca.pem&sslpassword=pa55",
            "postgresql://me@db:5433/shop?sslmode=verify-full&sslrootcert=/a/ca.pem",
        ),
        ("postgresql://me:pa55@[::1]:5433/shop", "postgresql://me@[::1]:5433/shop"),
        ("postgresql://a:1,b:2/shop", "postgresql:///shop?host=a,b&port=1,2"),
        ("host=/run/pg user='o dd' dbname='sh/op'", "postgresql://o%20dd@/sh%2Fop?host=/run/pg"),
        ("postgresql://db/d?options=-c%20a%3Db", "postgresql://db/d?options=-c%20a%3Db"),
    ],
)
def test_a_url_without_its_secrets_leads_to_the_same_place(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
    kept = {name: value for name, value in parse_url(url).items() if "password" not in name}
    assert parse_url(shown) == kept


def test_a_short_password_is_masked_where_passwords_stand_only() -> None:
    said = HERE + 'FATAL: permission denied for port, tried with "postgresql://me:p@db/d" and password=p'
    message = connect_error(psycopg.OperationalError(said), "postgresql://me:p@db/d").message
    assert "permission denied for port" in message
    assert "me:********@db/d" in message
    assert message.endswith("password=********")


def test_a_longer_password_is_masked_everywhere() -> None:
    said = HERE + 'FATAL: role "s3cr" does not exist'
    assert "s3cr" not in connect_error(psycopg.OperationalError(said), "postgresql://me:s3cr@db/d").message
