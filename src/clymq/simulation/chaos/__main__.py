"""`python -m clymq.simulation.chaos`: see `command`."""

import sys

from clymq.simulation.chaos.command import main

sys.exit(main())
