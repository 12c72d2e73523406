"""What is told of a search when it is asked: audits, receipts, tables."""
