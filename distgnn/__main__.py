"""``python -m distgnn`` is the ``distgnn`` command."""

import sys

from distgnn.cli import main

if __name__ == "__main__":
    sys.exit(main())
