"""Chat: rooms with members, messages in one order per room, and what is announced to those who are connected."""
