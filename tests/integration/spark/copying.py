"""A driver of its own: copies a topic to another as a stream, until it is killed or done.

python copying.py BOOTSTRAP SOURCE TARGET CHECKPOINT MASTER ROWS_PER_TRIGGER
"""

from __future__ import annotations

import sys

from clymq.spark.session import spark_session, start_query


def main() -> None:
    bootstrap, source, target, checkpoint, master, rows = sys.argv[1:]
    settings = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        # Executors that are processes of their own are stopped by a heartbeat that a busy machine may be late with.
        "spark.network.timeout": "300s",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    spark = spark_session("copying", master=master, settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    options = {"bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    rows_in = spark.readStream.format("clymq").options(**options).option("maxOffsetsPerTrigger", rows).load()
    writer = rows_in.select("key", "value").writeStream.format("clymq").option("bootstrap.servers", bootstrap)
    writer = writer.option("topic", target).option("checkpointLocation", checkpoint)
    query = start_query(writer.trigger(availableNow=True))
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
