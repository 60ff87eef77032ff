"""Raft, and nothing else: no clock, no chance, no disk, no network. `RaftNode` is the one public class.

The core decides; the driver performs. Inputs are messages, proposals, the time, and word that bytes have reached the
disk; the output is a `Ready`: what to make durable, what to write, what to send, how far the log is committed, and in
which order. It reads like the paper (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm"),
whose sections are cited as §5.4.1 and so on; what goes beyond it says why.
"""
