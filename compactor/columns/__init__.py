"""Values as typed columns: decodes them, and derives files with typed columns from Parquet objects."""
