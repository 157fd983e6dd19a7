"""Its presence puts this folder on the path, for the modules that several folders of tests share."""
