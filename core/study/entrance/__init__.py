"""The ways into a study: by what it is called with, by a function that trains, by its log."""
