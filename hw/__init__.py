"""The layer of the real devices behind the engine's port; nothing here yet, see CHANGELOG.md."""
