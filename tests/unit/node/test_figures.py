"""How busy a broker is: rates between two looks, from totals that only rise."""

from __future__ import annotations

from clymq.cli.figures import process_totals
from clymq.clock import ManualClock
from clymq.node.figures import Gauge, Rates, Totals


def test_rates_are_what_was_used_between_two_looks() -> None:
    clock, used = ManualClock(), [Totals(10.0, 1000)]
    gauge = Gauge(clock, lambda: used[-1])
    clock.advance(2000)
    used.append(Totals(13.0, 5000))
    assert gauge.look() == Rates(cpu=1.5, disk_io=2000.0)
    clock.advance(5000)
    assert gauge.look() == Rates(cpu=0.0, disk_io=0.0)


def test_two_looks_at_the_same_moment_divide_by_nothing() -> None:
    gauge = Gauge(ManualClock(), lambda: Totals(1.0, 1))
    assert gauge.look() == Rates()


def test_a_process_is_seen_to_work() -> None:
    before = process_totals()
    while (after := process_totals()).cpu_seconds == before.cpu_seconds:
        sum(range(100_000))
    assert after.cpu_seconds > before.cpu_seconds
    assert after.disk_bytes >= before.disk_bytes
