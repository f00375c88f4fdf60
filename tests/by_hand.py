"""A machine that was put together by hand, from kernel, link and disk measurements of one H200.

Tests of the simulated devices count on its numbers; the shipped `nvidia-h200` is measured anew now
and then, and is for predictions.
"""

from pathlib import Path

H200_BY_HAND = str(Path(__file__).parent / "sim" / "data" / "h200-by-hand.json")
