"""What a study is made of: what it is called with, a function that trains, the sessions behind it."""
