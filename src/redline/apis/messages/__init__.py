"""Converts requests of Anthropic's Messages API to chat requests, and the answers to messages.

https://platform.claude.com/docs/en/api/messages
"""

from redline.apis.messages.answers import message_of
from redline.apis.messages.errors import COUNT_TOKENS, MESSAGES, is_messages_path, messages_error
from redline.apis.messages.requests import UntranslatableError, chat_of, prompt_of
from redline.apis.messages.stream import MessageStream
