"""What is believed of every place: a Gaussian process over a finite set."""
