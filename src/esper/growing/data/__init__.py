"""What a user gives as data, read into three checked parts; knows nothing of the search."""
