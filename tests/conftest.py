"""All tests run from the sources: they patch classes, which a compiled engine does not allow. What
is about the compiled engine (tests/compiled) asks for it in processes of its own.
"""

import os

os.environ["HICACHE_COMPILED"] = "0"
