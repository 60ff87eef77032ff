"""Which queues there are, ours first; a module is loaded when its queue is asked for, which keeps children light."""

from __future__ import annotations

import importlib

from benchmarks.peers.system import Client, System

OURS = "clymq"
# Key: module, and the names of its two classes.
_WHERE = {
    OURS: ("clymq_", "Clymq", "ClymqClient"),
    "kafka": ("kafka", "Kafka", "KafkaClient"),
    "nats": ("nats", "Nats", "NatsClient"),
    "rabbitmq": ("rabbitmq", "RabbitMQ", "RabbitMQClient"),
    "rabbitmq_stream": ("rabbitmq_stream", "RabbitMQStream", "RabbitMQStreamClient"),
    "redis": ("redis_streams", "RedisStreams", "RedisStreamsClient"),
}


def systems() -> list[type[System]]:
    """Return the servers of all queues."""
    return [_load(module, name) for module, name, _ in _WHERE.values()]


def client_of(key: str) -> type[Client]:
    """Return the client of a queue."""
    module, _, name = _WHERE[key]
    found: type[Client] = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
    return found


def _load(module: str, name: str) -> type[System]:
    found: type[System] = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
    return found
