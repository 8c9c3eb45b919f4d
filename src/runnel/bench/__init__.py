"""Side-by-side measurements: what Runnel costs beside `pg_recvlogical` on the same backlog, here, now."""
