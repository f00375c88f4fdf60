"""The layer that measures machines and writes profiles; nothing here yet, see CHANGELOG.md."""
