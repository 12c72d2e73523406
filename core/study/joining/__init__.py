"""Ways into a study that is there already: by its log, or as the trial that a launcher handed over."""
