"""Hostile input: bytes, files, settings and command lines that nobody of good will would send.

Each `Target` takes one kind of input. A seed and a number make an input, so that any can be made again alone; what it
is made of is valid first and then spoilt, because garbage does not get past the first check. The promise that is tried
is the same everywhere: an input is taken, or refused with an error of `clymq.errors`; nothing crashes, hangs, leaks, or
asks for memory because a number in the input says so.
"""
