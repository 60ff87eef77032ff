"""`scripts/simulate [--cluster] [--seeds N] [--first S] [--seed S] [--jobs J] [--mutation NAME] [--list-mutations]`.

Without `--cluster` it runs Raft groups (`clymq.simulation.world`), with it whole clusters (`clymq.simulation.cluster`).
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from clymq.errors import ClymqError
from clymq.simulation import mutations, options, world
from clymq.simulation.cluster import mutations as cluster_mutations
from clymq.simulation.cluster import options as cluster_options
from clymq.simulation.cluster import world as cluster_world

Outcome = tuple[int, str | None]


class Ran(Protocol):
    """A world that has been lived through."""

    trace: list[str]

    @property
    def trace_hash(self) -> str:
        """A fingerprint of everything that happened."""


class Kind(NamedTuple):
    """What can be simulated."""

    simulate: Callable[[int], Ran]
    options: Callable[[int], object]
    mutations: Mapping[str, Callable[[], Any]]
    applied: Callable[[str | None], AbstractContextManager[None]]


GROUPS = Kind(world.simulate, options.Options.draw, mutations.MUTATIONS, mutations.applied)
CLUSTERS = Kind(
    cluster_world.simulate, cluster_options.Options.draw, cluster_mutations.MUTATIONS, cluster_mutations.applied
)


def _kind(*, cluster: bool) -> Kind:
    return CLUSTERS if cluster else GROUPS


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds and say what they found; exit code 1 if anything."""
    arguments = _parse(argv)
    kind = _kind(cluster=arguments.cluster)
    if arguments.list_mutations:
        return _list_mutations(kind)
    _quiet(arguments.cluster)
    if arguments.seed is not None:
        return _one(kind, arguments.seed, arguments.mutation)
    return _first_to_catch(arguments) if arguments.mutation else _all(arguments)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description="Replicas and clusters on virtual time.")
    parser.add_argument("--cluster", action="store_true", help="whole clusters; otherwise Raft groups")
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many seeds to run (200)")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first of them (0)")
    parser.add_argument("--seed", type=int, metavar="S", help="run one seed and print its trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes (one per core)")
    parser.add_argument(
        "--mutation",
        metavar="NAME",
        help="break one rule, and look for the first seed that catches it",
    )
    parser.add_argument("--list-mutations", action="store_true", help="say which rules can be broken")
    arguments = parser.parse_args(argv)
    known = _kind(cluster=arguments.cluster).mutations
    if arguments.mutation is not None and arguments.mutation not in known:
        parser.error(f"there is no mutation {arguments.mutation}; there are {', '.join(sorted(known))}")
    if min(arguments.seeds, arguments.jobs) < 1 or arguments.first < 0:
        parser.error("--seeds and --jobs are at least 1, --first is not negative")
    return arguments


def _list_mutations(kind: Kind) -> int:
    for name, mutation in sorted(kind.mutations.items()):
        print(f"{name:34}{(mutation.__doc__ or '').partition(chr(10))[0]}")
    return 0


def _one(kind: Kind, seed: int, mutation: str | None) -> int:
    began = time.monotonic()
    print(f"seed {seed}: {kind.options(seed)}")
    problem, ran = None, None
    try:
        with kind.applied(mutation):
            ran = kind.simulate(seed)
    except (AssertionError, ClymqError) as error:
        problem = error
    if ran is not None:
        print("\n".join(ran.trace))
        print(f"trace {ran.trace_hash}")
    else:
        print(f"{type(problem).__name__}: {problem}", *getattr(problem, "__notes__", ()), sep="\n")
    print(f"1 seeds, {0 if ran else 1} violations, {time.monotonic() - began:.0f} s")
    return 0 if ran else 1


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
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    work = [(arguments.cluster, seed, arguments.mutation) for seed in seeds]
    if arguments.jobs == 1:
        yield from map(_outcome, work)
        return
    with multiprocessing.get_context("fork").Pool(arguments.jobs, _quiet, (arguments.cluster,)) as pool:
        yield from pool.imap(_outcome, work, chunksize=1 if arguments.cluster else 8)


def _quiet(cluster: bool) -> None:
    """Let nothing be logged; a cluster does so by itself, because it listens to what is."""
    if not cluster:
        logging.disable(logging.CRITICAL)


def _outcome(work: tuple[bool, int, str | None]) -> Outcome:
    cluster, seed, mutation = work
    kind = _kind(cluster=cluster)
    try:
        with kind.applied(mutation):
            kind.simulate(seed)
    except (AssertionError, ClymqError) as error:
        return seed, f"{type(error).__name__}: {error}".partition("\n")[0]
    return seed, None
