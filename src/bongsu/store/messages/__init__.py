"""Messages: what they contain and, of those to many members, how many there are in each state."""
