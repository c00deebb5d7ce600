"""The bell: one JavaScript file, and the route that serves it."""
