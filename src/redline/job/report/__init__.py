"""Reports on a job: reads the files of its output, and writes HTML, Markdown, JSON or SVG."""

from redline.job.report.data import MOST_JOBS, JobReport, json_of, report_of
from redline.job.report.html import BEGINNINGS, html_of
from redline.job.report.markdown import markdown_of
from redline.job.report.reading import JobFiles, read_files
from redline.job.report.svg import svg_of
