"""The blocking classes: the same words as the asynchronous ones, for programs without an event loop.

Each holds its asynchronous twin and has one event loop, in one thread for all of a process, do the work (`thread`).
What they can do, how they are called and what they raise is taken from the twin itself (`calls`), so that the two
cannot drift apart. Only `send`, iteration and `run` are more than a call: they must not cross to another thread for
each message.
"""
