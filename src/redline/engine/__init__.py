"""The local engine: a causal LM on this machine, batched, with speculative decoding.

Importing this package does not import torch. The modules that compute import it, and they are
imported only when an engine starts.
"""

from redline.engine.settings import DTYPES, LEAST, LONGEST_WAIT_S, EngineSettings
from redline.engine.vllm import command, launch, url_host
