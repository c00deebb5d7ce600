"""Live: open pages hear of a notification at once, on whatever instance they are connected to, without gap or repeat."""
