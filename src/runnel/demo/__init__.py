"""The first minute: an embedded PostgreSQL, a small shop that is never still, and a view of the stream."""
