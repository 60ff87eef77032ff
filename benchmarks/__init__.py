"""Programs that measure ClyMQ beside the limit of the machine. Run by `scripts/bench`."""
