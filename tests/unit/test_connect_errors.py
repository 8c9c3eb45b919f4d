"""What libpq says when it cannot connect: what lasts ends a run, what may heal is tried again."""

from __future__ import annotations

import psycopg
import pytest

from runnel.errors import Kind
from runnel.postgres.connect import connect_error

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
        'root certificate file "/root/.postgresql/root.crt" does not exist',
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
