"""Decides which calls start now, which wait, and which are refused."""

from redline.serve.admission.errors import Overloaded, QueueFull
from redline.serve.admission.gate import Gate, Place
from redline.serve.admission.gated import Gated
from redline.serve.admission.settings import CLASSES, ClassSettings
from redline.serve.admission.state import ClassLoad
