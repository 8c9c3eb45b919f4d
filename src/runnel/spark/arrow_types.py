"""Spark's type for each Arrow type that a table view can have, and back. PySpark's own needs pandas."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types


def spark_type(kind: pa.DataType) -> types.DataType:
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return types.TimestampNTZType() if kind.tz is None else types.TimestampType()
    if pa.types.is_list(kind):
        return types.ArrayType(spark_type(kind.value_type))
    return _PLAIN[kind]()


_PLAIN = {
    pa.int16(): types.ShortType,
    pa.int32(): types.IntegerType,
    pa.int64(): types.LongType,
    pa.float32(): types.FloatType,
    pa.float64(): types.DoubleType,
    pa.bool_(): types.BooleanType,
    pa.date32(): types.DateType,
    pa.binary(): types.BinaryType,
    pa.string(): types.StringType,
}


def arrow_type(kind: types.DataType) -> pa.DataType | None:
    """None: a table view has no such columns."""
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.ArrayType):
        of = arrow_type(kind.elementType)
        return None if of is None else pa.list_(of)
    return _BACK.get(type(kind))


_BACK = {spark: arrow for arrow, spark in _PLAIN.items()} | {
    types.TimestampType: pa.timestamp("us", "UTC"),
    types.TimestampNTZType: pa.timestamp("us"),
}
