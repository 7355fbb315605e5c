"""Client of Caravan: submit jobs, follow them, ask, read logs and files, run commands, read the event log.

    async with await connect() as caravan:
        verdict = await caravan.jobs.submit(job)
        await caravan.jobs.wait(verdict)

Needs nats-py and msgspec, no code of Caravan. Messages of the cluster are Structs of `caravan_client.messages`.
"""

from caravan_client.client import Client, connect
from caravan_client.connection import token
from caravan_client.errors import (
    CaravanError,
    ClusterChanged,
    JobFailed,
    LogDamaged,
    NoAnswer,
    Refused,
    StreamEnded,
)
from caravan_client.jobs import OVER, RUNNING
from caravan_client.log import Record
from caravan_client.sync import SyncClient, connect_sync
from caravan_client.tasks import Completed

__all__ = [
    "OVER",
    "RUNNING",
    "CaravanError",
    "Client",
    "ClusterChanged",
    "Completed",
    "JobFailed",
    "LogDamaged",
    "NoAnswer",
    "Record",
    "Refused",
    "StreamEnded",
    "SyncClient",
    "connect",
    "connect_sync",
    "token",
]
