"""Whole queues beside each other: `scripts/bench all`.

`system` says what a queue must offer to be measured. Each queue has one module: `clymq_`, `kafka`, `nats`, `rabbitmq`,
`rabbitmq_stream`, `redis_streams`; `raw` is what the machine itself can do. `work` is what a child process does with a
client, `cells` runs such children, `program` decides who does what in which order, `figures` makes rows of what came
out, `verdicts` holds them against the aims, `tables`, `plots` and `page` show them.
"""
