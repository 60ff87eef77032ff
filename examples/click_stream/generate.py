"""Prints clicks as JSON lines, with some lines that are no JSON and some whose fields are of the wrong type.

python -m examples.click_stream.generate [--users N] [--bad N]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
PAGES = ("/", "/search", "/item", "/cart", "/pay")
# Of each kind some, in turn.
BAD = ('{"user": "u1", "page": ', "not JSON at all", '{"user": "u1", "page": "/", "at": "yesterday"}', "[]")


def clicks(users: int, bad: int, *, seed: int = 1) -> Iterator[str]:
    """Yield two sessions for each user, an hour apart, with bad lines among them, and a click that closes all."""
    chance = random.Random(seed)
    events = [
        (BEGIN + timedelta(hours=hour, seconds=20 * click + chance.random() * 10), f"u{user}")
        for user in range(users)
        for hour in (0, 1)
        for click in range(chance.randrange(1, 6))
    ]
    lines = [
        json.dumps({"user": user, "page": chance.choice(PAGES), "at": at.isoformat()}) for at, user in sorted(events)
    ]
    for number in range(bad):
        lines.insert(chance.randrange(len(lines)), BAD[number % len(BAD)])
    yield from lines
    yield json.dumps({"user": "last", "page": "/", "at": (BEGIN + timedelta(days=1)).isoformat()})


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--bad", type=int, default=20)
    arguments = parser.parse_args()
    for line in clicks(arguments.users, arguments.bad):
        print(line)


if __name__ == "__main__":
    main()
