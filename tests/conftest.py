"""Its presence puts this folder on the path, for the modules that several folders of tests share."""
import importlib.util

# These are of the installed wheel, in an environment that has it: the step "Python package" of ./run test.
collect_ignore = [] if importlib.util.find_spec("teratron") else ["python"]
