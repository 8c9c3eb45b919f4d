"""Found by Spark at the first use of a Python data source: `format("runnel")` after a mere install.

Spark imports every `pyspark_*` module for any Python source anybody uses: this one is light and never
raises. Without Runnel's own dependencies the format is simply not there.
"""

try:
    from runnel.spark.source import RunnelDataSource as DefaultSource
except ImportError:  # numpy or pyarrow missing in this interpreter
    pass
else:
    __all__ = ["DefaultSource"]
