"""What a run is made of and what it leaves: scenario, model, machine profile, result folder.

Shared by the simulator and the hardware mode, so that one scenario file runs in both.
"""
