"""The language on the wire: frames, verbs, and the state machine of one side of a connection. Pure.

`docs/protocol.md` is the truth about its bytes and numbers. The modules named below give the verbs their numbers; they
are imported here so that the table is complete whichever module of the package is imported first.
"""

from clymq.protocol import broker, consensus, controller, hosting, store

__all__ = ["broker", "consensus", "controller", "hosting", "store"]
