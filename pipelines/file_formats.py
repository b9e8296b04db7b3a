"""Which formats of files there are, and what the watermark of input without an end may follow. Imports nothing."""

READ = ("avro", "parquet", "jsonl", "csv")
WRITTEN = READ
DEFAULT_FORMAT = "jsonl"
TIME_UNITS = ("s", "ms", "us", "ns")

ARRIVAL, MARKS = "arrival", "marks"
CLOCKS = (ARRIVAL, MARKS)
