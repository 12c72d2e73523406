"""haltune.tuners: what the bridges to other tuners share. A study decides on trials that the other one trains.

`conductor` holds a study and the other tuner's names for its trials, `kept` writes both as JSON and reads them back,
`grids` lists the values of a range with steps.
"""
