"""Parquet objects: old records as tables, from which every record batch can be made again.

`write` turns record batches into one Parquet file, `read` finds and rebuilds them by ranged reads, `verify`
proves the one against the other. pyarrow and numba are imported by those modules only, never by this one.
"""
