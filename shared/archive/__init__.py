"""The log as tables: facts read from records, Parquet segments of them, questions in SQL. DuckDB lives here alone."""
