"""Models of learning curves and of values at the stages of training, which policies, bridges and the page share."""
