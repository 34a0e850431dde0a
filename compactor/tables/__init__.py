"""Tables over a topic's Parquet objects: which files are live, and Iceberg tables that name them."""
