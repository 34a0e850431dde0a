"""Parquet objects: older records as tables, from which every record batch can be rebuilt.

`write` writes record batches into one Parquet file, `read` finds and rebuilds them with ranged reads, and `verify`
compares the file with its sources. Only those modules import pyarrow and numba, never this one.
"""
