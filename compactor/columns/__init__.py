"""Values as typed columns: how they are decoded, and the files that are derived from Parquet objects."""
