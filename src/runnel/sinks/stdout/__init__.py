"""The `stdout` sink: one JSON line per change on standard output."""
