"""From a measured value to a report: clock, delivery, heartbeat."""
