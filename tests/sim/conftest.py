"""Lets the tests of this folder import the contracts that lie beside it."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "hicache")]
