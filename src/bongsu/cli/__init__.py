"""The commands, and how they print what the desk and the store return."""
