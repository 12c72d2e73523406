"""The log in a SQLite file: its three files are looked after, and one writer at a time waits for the other."""
