"""Tables over a topic's Parquet objects: lists live files, and keeps Iceberg tables that refer to them."""
