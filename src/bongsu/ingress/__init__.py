"""Accept: every way an event comes in. All end in the same statement."""
