"""haltune.tuners: what the bridges to other tuners share. A study decides on trials that the other one trains.

`conductor` holds a study and the names of its trials in the other tuner, and writes both as JSON. `domains` translates
ranges and choices.
"""
