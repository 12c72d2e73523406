"""What a level-set search answers: regions, rules, maximisers."""
