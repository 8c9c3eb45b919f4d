"""The `files` sink: JSON lines, CSV or Parquet in a directory."""
