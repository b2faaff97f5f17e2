"""``python -m blockout`` is the ``blockout`` command."""

import sys

from blockout.commands.cli import main

sys.exit(main())
