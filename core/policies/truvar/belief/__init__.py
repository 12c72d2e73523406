"""What is believed of every site: a Gaussian process over a finite set."""
