"""The shapes of the OpenAI APIs: requests, replies, stream events, usage and errors."""

from redline.apis import loose_json, replies
from redline.apis.choices import drafts, text_of
from redline.apis.error_inside import judge_choice, judge_part
from redline.apis.errors import error_body, judge
from redline.apis.loose_json import BOM, number
from redline.apis.usage import Usage, read_usage
