"""The shapes of the OpenAI APIs: replies, usage, and the errors that providers report."""

from redline.apis import loose_json, replies
from redline.apis.counts import drafts, number
from redline.apis.error_inside import judge_choice, judge_part
from redline.apis.loose_json import BOM
from redline.apis.status import judge
from redline.apis.usage import Usage, read_usage
