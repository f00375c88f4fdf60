"""One trace in both modes, on the machine and simulated, and how far the prediction was off."""
