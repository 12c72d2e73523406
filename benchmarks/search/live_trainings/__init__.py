"""Live trainings: many small networks trained at once, a slot for each search. See benchmarks/search/live.py."""
