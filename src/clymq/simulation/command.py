"""`scripts/simulate [--seeds N] [--first S] [--seed S] [--jobs J] [--mutation NAME] [--list-mutations]`."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence

from clymq.errors import ClymqError
from clymq.simulation.mutations import MUTATIONS, applied
from clymq.simulation.options import Options
from clymq.simulation.world import simulate

Outcome = tuple[int, str | None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds and say what they found; exit code 1 if anything."""
    arguments = _parse(argv)
    if arguments.list_mutations:
        return _list_mutations()
    logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        return _one(arguments.seed, arguments.mutation)
    return _first_to_catch(arguments) if arguments.mutation else _all(arguments)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description="Whole replicas on virtual time, by seed.")
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many seeds to run (200)")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first of them (0)")
    parser.add_argument("--seed", type=int, metavar="S", help="run one seed and print its trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes (one per core)")
    parser.add_argument(
        "--mutation",
        choices=sorted(MUTATIONS),
        metavar="NAME",
        help="break one rule, and look for the first seed that catches it",
    )
    parser.add_argument("--list-mutations", action="store_true", help="say which rules can be broken")
    arguments = parser.parse_args(argv)
    if min(arguments.seeds, arguments.jobs) < 1 or arguments.first < 0:
        parser.error("--seeds and --jobs are at least 1, --first is not negative")
    return arguments


def _list_mutations() -> int:
    for name, mutation in sorted(MUTATIONS.items()):
        print(f"{name:34}{(mutation.__doc__ or '').partition(chr(10))[0]}")
    return 0


def _one(seed: int, mutation: str | None) -> int:
    began = time.monotonic()
    print(f"seed {seed}: {Options.draw(seed)}")
    problem, world = None, None
    try:
        with applied(mutation):
            world = simulate(seed)
    except (AssertionError, ClymqError) as error:
        problem = error
    if world is not None:
        print("\n".join(world.trace))
        print(f"trace {world.trace_hash}")
    else:
        print(f"{type(problem).__name__}: {problem}", *getattr(problem, "__notes__", ()), sep="\n")
    print(f"1 seeds, {0 if world else 1} violations, {time.monotonic() - began:.0f} s")
    return 0 if world else 1


def _all(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    violations = 0
    for seed, problem in _outcomes(arguments):
        if problem is not None:
            violations += 1
            print(f"seed {seed}: {problem}", flush=True)
    print(f"{arguments.seeds} seeds, {violations} violations, {time.monotonic() - began:.0f} s")
    return 1 if violations else 0


def _first_to_catch(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    for seed, problem in _outcomes(arguments):
        if problem is not None:
            print(f"seed {seed}: {problem}")
            print(f"{arguments.mutation} is caught by seed {seed}, {time.monotonic() - began:.0f} s")
            return 1
    print(f"{arguments.mutation} is not caught by {arguments.seeds} seeds, {time.monotonic() - began:.0f} s")
    return 0


def _outcomes(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Yield what came of each seed, in order, so that the first is the first however many processes there are."""
    work = [(seed, arguments.mutation) for seed in range(arguments.first, arguments.first + arguments.seeds)]
    if arguments.jobs == 1:
        yield from map(_outcome, work)
        return
    with multiprocessing.get_context("fork").Pool(arguments.jobs, _quiet) as pool:
        yield from pool.imap(_outcome, work, chunksize=8)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def _outcome(work: tuple[int, str | None]) -> Outcome:
    seed, mutation = work
    try:
        with applied(mutation):
            simulate(seed)
    except (AssertionError, ClymqError) as error:
        return seed, f"{type(error).__name__}: {error}".partition("\n")[0]
    return seed, None
