"""The contestants' programs, each run by the interpreter that has its system."""
