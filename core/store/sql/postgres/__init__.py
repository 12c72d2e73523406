"""The log in a PostgreSQL server: for workers on many machines."""
