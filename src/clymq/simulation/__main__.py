"""`python -m clymq.simulation`: see `command`."""

import sys

from clymq.simulation.command import main

sys.exit(main())
