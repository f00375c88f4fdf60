"""Lets the tests of this folder import the contracts that lie beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
