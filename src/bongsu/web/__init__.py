"""Pages and what goes into pages: the bell for any site, and the demo's shop."""
