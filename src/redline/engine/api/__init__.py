"""The engine as a backend: OpenAI requests in, sequences computed, replies out."""

from redline.engine.api.backend import EngineBackend, Speaker
from redline.engine.api.bodies import Answer, Drawn, Said
from redline.engine.api.detokenize import Pieces, TextStream
from redline.engine.api.device import gpu_use
from redline.engine.api.prompting import Asked, read_request
from redline.engine.api.start import Engine, open_engine
