"""Measures a machine (`calibrate.command`), writes its profile, and compares real runs with what
was predicted of them (`calibrate.validate`, `calibrate.learning`).
"""
