"""Declarative pipelines: topics in, SQL in the middle, topics or files out, described by one file.

`definition` is the file's meaning and knows nothing of Spark; `decoding`, `sinks` and `running` make queries of it;
`checkpoints` and `progress` tell how far they are.
"""
