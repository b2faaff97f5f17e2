"""The paper's tables as data, the runs that they need, and what the records of these say."""

from blockout.reproduce.records import CellRecord, Records, RunRecord
from blockout.reproduce.rows import PARTS, Row, Table, table, table_of
from blockout.reproduce.settings import SCALES, Cell, Condition, cell_of, config_of
from blockout.reproduce.work import Summary, Worker

__all__ = [
    "PARTS",
    "SCALES",
    "Cell",
    "CellRecord",
    "Condition",
    "Records",
    "Row",
    "RunRecord",
    "Summary",
    "Table",
    "Worker",
    "cell_of",
    "config_of",
    "table",
    "table_of",
]
