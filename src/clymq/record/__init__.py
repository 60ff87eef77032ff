"""The batch: the unit of everything, written once by the producer and never changed but for the leader's stamp.

`docs/data_format.md` is the truth about its bytes; `layout` follows it. Pure: no clock, no disk, no chance.
"""

from clymq.record.batch import Batch, Record
from clymq.record.builder import BatchBuilder, control_batch, producer_id
from clymq.record.layout import Flag, Header, Kind

__all__ = [
    "Batch",
    "BatchBuilder",
    "Flag",
    "Header",
    "Kind",
    "Record",
    "control_batch",
    "producer_id",
]
