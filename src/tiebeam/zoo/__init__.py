"""Small models that are right, one folder for each framework: for demo, experiments, lessons, tests."""
