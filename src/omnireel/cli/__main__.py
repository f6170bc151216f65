"""`python -m omnireel.cli` is the `omnireel` command, for places where no script was installed."""

import sys

from omnireel.cli.main import entry

sys.exit(entry())
