"""One answer for all ranks of a distributed training. Knows no trial."""
