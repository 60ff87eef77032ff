"""The producer of the original program: phone numbers of three cities, each city a partition in a state of its own.

    clymq up &                                  # a cluster on this machine
    python examples/producer.py                 # then, in another terminal:
    python examples/consumer.py

Run it twice under one name: the second process goes on where the first has stopped, and nothing is stored twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from clymq import Ack, Producer

TOPIC = "phone_number"
CITIES = {"xian": Ack.QUORUM, "shanghai": Ack.LEADER, "北京": Ack.NONE}
"""A majority of the brokers has it on disk; the leader has it; it was received."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the topic if it is not there, and push."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:7878", help="any servers of the cluster")
    parser.add_argument("--name", default="phone_company", help="who pushes")
    parser.add_argument("--count", type=int, default=1000, help="messages for each city")
    options = parser.parse_args(arguments)

    with Producer(options.bootstrap, name=options.name) as producer:
        producer.create_topic(TOPIC, partitions=0)
        for city, ack in CITIES.items():
            producer.create_partition(TOPIC, city)
            print(f"{city}: {producer.set_partition_state(TOPIC, city, ack=ack)}")

        # One at a time: the receipt says where it is.
        for city in CITIES:
            receipt = producer.push(TOPIC, b"+86 000 0000", key=city.encode(), partition=city)
            print(f"{city}: the first of this run is at offset {receipt.offset}")

        # Many: send() returns at once, flush() waits until all are stored.
        for number in range(1, options.count):
            for city in CITIES:
                producer.send(TOPIC, b"+86 %03d %04d" % divmod(number, 10_000), partition=city)
        producer.flush()
        for city in CITIES:
            print(f"{city}: {producer.last_cmdindex(TOPIC, city)} messages of {options.name} are stored")


if __name__ == "__main__":
    main()
