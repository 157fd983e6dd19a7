"""Its presence puts this folder on the path, for the modules that several folders of tests share."""
import importlib.util

# Tests of the installed wheel, in an environment that has it: the step "Python package" of ./run test. Without it the name
# is that of the folder of sources.
installed = importlib.util.find_spec("teratron")
collect_ignore = [] if installed and installed.origin else ["python"]
