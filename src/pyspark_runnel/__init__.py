"""Found by Spark at the first use of a Python data source: `format("runnel")` after a mere install."""
