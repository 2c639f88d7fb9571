"""The local engine: a causal LM on this machine, batched, with speculative decoding.

Importing this part does not import torch; its modules that compute do, and are imported only
where an engine starts.
"""

from redline.engine.settings import DTYPES, LEAST, LONGEST_WAIT_S, EngineSettings
from redline.engine.vllm import command, launch, url_host
