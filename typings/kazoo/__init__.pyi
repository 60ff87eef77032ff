"""The part of kazoo that ClyMQ uses; kazoo ships no types of its own. Add what you call, nothing else."""
