"""Shows what an output contains, and how two outputs differ. Writes nothing to them."""

from redline.job.inspect.comparison import (
    KINDS,
    Comparison,
    compare_outputs,
)
from redline.job.inspect.cost import Tariff
from redline.job.inspect.current import current_lines
from redline.job.inspect.figures import Ending, Figures
from redline.job.inspect.lines import Line, read_line
from redline.job.inspect.opening import Opened, opened
from redline.job.inspect.page import page_of
from redline.job.inspect.rendering import PAGE, rendered
from redline.job.inspect.sampling import Sample
from redline.job.inspect.selection import Found, Selection, figures_of, row_number, select
