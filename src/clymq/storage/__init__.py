"""The partition's storage: blocks of batches on disk, and everything that keeps them honest.

`files` is the only code that opens, writes, syncs or renames, and the only code here that knows a thread. All else is
plain logic over it, and runs as well on `memory`, the twin that can lose power.
"""
