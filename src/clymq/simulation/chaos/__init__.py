"""Real processes under real faults, and a checker that holds what clients saw against what was promised.

Three parts that know nothing of each other but the history between them: clients write down what they asked and what
they were answered (`clients`), a nemesis does its worst and says when (`plan`, `nemesis`), and the checker judges the
lines that they have left (`checker`). The checker is pure and works on any history; see docs/testing.md for its format.
"""
