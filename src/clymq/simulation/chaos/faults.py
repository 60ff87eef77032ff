"""Each fault as a context: entering it makes something go wrong, leaving it makes it right again.

A fault of the kind `kill zookeeper` is a method `kill_zookeeper` of one of the classes below; each takes the fault that
was drawn and does what it says to the cluster or its clients.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from clymq.simulation.chaos.client_faults import ClientFaults
from clymq.simulation.chaos.disk_faults import DiskFaults
from clymq.simulation.chaos.network_faults import NetworkFaults
from clymq.simulation.chaos.operator_faults import OperatorFaults
from clymq.simulation.chaos.plan import Fault
from clymq.simulation.chaos.process_faults import ProcessFaults
from clymq.simulation.chaos.scene import Scene

GROUPS = (ProcessFaults, DiskFaults, NetworkFaults, ClientFaults, OperatorFaults)


class Faults:
    """See the module."""

    def __init__(self, scene: Scene) -> None:
        self.operator = OperatorFaults(scene)
        self._groups = (
            ProcessFaults(scene), DiskFaults(scene), NetworkFaults(scene), ClientFaults(scene.workload), self.operator
        )  # fmt: skip

    def make(self, fault: Fault) -> AbstractAsyncContextManager[None]:
        """Return the context of a fault."""
        method = fault.kind.replace(" ", "_")
        group = next(group for group in self._groups if hasattr(group, method))
        context: AbstractAsyncContextManager[None] = getattr(group, method)(fault)
        return context
