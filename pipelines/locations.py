"""How input and output are named: formats of files, topics of Kafka, tables; and what a watermark may follow."""

from __future__ import annotations

WRITTEN = ("avro", "parquet", "jsonl", "csv", "xlsx")
DEFAULT_FORMAT = "jsonl"
MONITOR_FILES = (".yaml", ".yml")  # what the names of files end in that describe monitors

ARRIVAL, MARKS = "arrival", "marks"
DEFAULT_DATASET = "default"  # the data set of runs that name none
SCHEME = "kafka"

BESIDE = ".guarantee.json"  # how the name of the guarantee file beside rows ends
GUARANTEE = "_guarantee.json"  # the guarantee file of a folder; its name begins with `_`, so that watchers skip it
END = "_END"  # the name of a file that says that no file will come any more into a folder that is watched
POSTGRESQL, DUCKDB = "postgresql://", (".duckdb", ".db")
"""How the address of a database begins, and how the names of files end that are one."""

DATABASE = "postgresql://user@host:port/database"  # how a database is named
TABLE = "postgresql://user@host:port/database/table"  # how a table is named
