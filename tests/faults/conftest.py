"""Lets the tests of this folder use the helpers of the engine's tests."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "hicache"), str(TESTS / "sim")]
