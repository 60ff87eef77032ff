"""`python -m clymq.simulation.fuzz`: see `command`."""

import sys

from clymq.simulation.fuzz.command import main

sys.exit(main())
