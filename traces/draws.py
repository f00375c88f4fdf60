"""Random numbers that are the same on every machine: all come from `Random.random` alone.

Python guarantees the sequence of that method for a seed, and of no other.
"""

from __future__ import annotations

import math
import random


class Draws:
    """One seeded sequence. Each method takes the next number or numbers of it."""

    def __init__(self, seed: int) -> None:
        self.uniform = random.Random(seed).random

    def exponential(self, mean: float) -> float:
        """A time until the next event of a Poisson process."""
        return -math.log(1.0 - self.uniform()) * mean

    def lognormal(self, median: float, sigma: float) -> float:
        """`sigma` 0 always gives the median; 1 a mean of 1.65 medians."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return median * math.exp(sigma * radius * math.cos(2.0 * math.pi * self.uniform()))

    def normal(self, mean: float, sigma: float) -> float:
        """A number of a normal distribution, by Box and Muller."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return mean + sigma * radius * math.cos(2.0 * math.pi * self.uniform())

    def tokens(self, median: float, sigma: float) -> int:
        """A lognormal number of tokens, at least 1."""
        return max(1, round(self.lognormal(median, sigma)))

    def happens(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return self.uniform() < probability

    def below(self, end: int) -> int:
        """A whole number from 0 to `end` - 1, all alike."""
        return int(self.uniform() * end)

    def interval(self, arrival: str, mean: float) -> float:
        """A time between arrivals: "poisson" exponential, "uniform" between 0 and twice `mean`."""
        if arrival == "poisson":
            return self.exponential(mean)
        return 2.0 * mean * self.uniform()

    def shuffle(self, items: list[int]) -> None:
        """Put `items` in random order, every order alike (Fisher and Yates)."""
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]
