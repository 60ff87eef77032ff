"""The controller, which the command line calls zkserver: where things are, who holds what, and every change of a chain.

`controller.Controller` is the one class to compose a process with; `ring` and `assignment` are pure and public.
"""
