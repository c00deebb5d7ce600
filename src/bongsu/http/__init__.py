"""What every HTTP endpoint stands on: who may call, how errors read, how large a body may be."""
