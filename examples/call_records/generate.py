"""Makes call records and pushes them: in order of time, but some a few minutes late, and a few far too late.

python -m examples.call_records.generate [--bootstrap HOST:PORT] [--calls N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from clymq import AsyncProducer

CITIES = ("xian", "beijing", "shanghai")
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


def calls(count: int, *, seed: int = 1) -> Iterator[tuple[str, bytes]]:
    """Yield partition and record of `count` calls over two hours, then one that closes the last window of each city."""
    chance = random.Random(seed)
    for number in range(count):
        city = chance.choice(CITIES)
        at = BEGIN + timedelta(hours=2) * (number / count)
        if chance.random() < 0.05:
            at -= timedelta(minutes=chance.randrange(1, 6))
        yield city, _record(f"1380000{number:04d}", city, chance.randrange(1, 600), at)
    for city in CITIES:
        yield city, _record("13900000000", city, 0, BEGIN + timedelta(days=1))


def _record(number: str, city: str, seconds: int, at: datetime) -> bytes:
    return json.dumps({"number": number, "city": city, "seconds": seconds, "at": at.isoformat()}).encode()


async def push(bootstrap: str, records: Iterator[tuple[str, bytes]], topic: str = "phone_number") -> int:
    """Push records to the partitions that are named for their cities."""
    sent = 0
    async with AsyncProducer(bootstrap) as producer:
        for city, record in records:
            producer.send(topic, record, key=city.encode(), partition=city)
            sent += 1
            if sent % 1000 == 0:
                await producer.drain()
        await producer.flush()
    return sent


def main() -> None:
    """Read the arguments and push."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bootstrap", default="127.0.0.1:7878")
    parser.add_argument("--calls", type=int, default=10_000)
    arguments = parser.parse_args()
    sent = asyncio.run(push(arguments.bootstrap, calls(arguments.calls)))
    print(f"{sent} call records")


if __name__ == "__main__":
    main()
