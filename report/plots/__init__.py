"""Every picture of this project: functions from a DataFrame to a Figure, in one style."""
