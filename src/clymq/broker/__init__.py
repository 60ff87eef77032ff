"""A broker: stores and serves the blocks that the metadata tree says it should."""
