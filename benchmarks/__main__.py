"""`python -m benchmarks`: the cost of dispatch, then whole steps. Arguments go to the latter."""

import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).parent
status = subprocess.call([sys.executable, str(here / "dispatch.py")])
print(flush=True)
sys.exit(subprocess.call([sys.executable, str(here / "run.py"), *sys.argv[1:]]) or status)
