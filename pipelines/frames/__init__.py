"""Questions about frames of pandas, Polars, Arrow or DuckDB, without a file and without Beam's own words."""
