"""Makes the simulated model's answers, from request bodies to replies in OpenAI's shapes."""

from redline.sim.answers.answers import Answers, cut, embedding, packed
from redline.sim.answers.bodies import BadCall, count_tokens, decode
from redline.sim.answers.drafts import ENDPOINTS, Draft, Object
from redline.sim.answers.replay import Replay, load_replay
from redline.sim.answers.schema import example
from redline.sim.answers.stories import Stories
