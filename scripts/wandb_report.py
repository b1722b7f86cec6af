"""Build the W&B report of this project: how rows compare, how they were trained, query by query.

    pip install wandb-workspaces
    python scripts/wandb_report.py --entity YOU [--project lexical-translation-rankers] [--data pydocs_passage]

Needs runs that were synced, and a login (`wandb login`). Each call saves a new draft and prints its address.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lexical.errors import UserError, run_script
from pipeline.tracking import PROJECT

TRAINING = (
    "train/loss",
    "train/active_pairs",
    "val/mrr",
    "train/learning_rate",
    "train/gradient_norm",
    "train/pairs_per_second",
    "train/padding",
)


def build_report(entity: str, project: str, data: str, measure: str = "test/MRR") -> Any:
    """Return the report, not saved: summary runs compared, trainings of all seeds, per-query tables."""
    import wandb_workspaces.reports.v2 as wr

    def runs(name: str, job_type: str, grouped: bool) -> Any:
        filters = f"Config('labels.data') = '{data}' and Config('labels.job_type') = '{job_type}'"
        groups = ["config.labels.group"] if grouped else []
        return wr.Runset(entity=entity, project=project, name=name, filters=filters, groupby=groups)

    tables = (f"per_query/{measure.split('/')[0]}", "significance")
    summaries, trainings = runs("summaries", "summary", False), runs("trainings", "train", True)
    return wr.Report(
        entity=entity,
        project=project,
        title=f"Lexical translation rankers on {data}",
        description="Figures are means over seeds, tests are paired t-tests over queries.",
        blocks=[
            wr.H1("Effectiveness and speed"),
            wr.PanelGrid(
                runsets=[summaries],
                panels=[
                    wr.BarPlot(title=measure, metrics=[wr.SummaryMetric(measure)], layout=wr.Layout(w=12, h=8)),
                    wr.ScatterPlot(
                        title="effectiveness against ms per 1,000 documents", x=wr.SummaryMetric("ms_per_1k"),
                        y=wr.SummaryMetric(measure), log_x=True, layout=wr.Layout(w=12, h=8),
                    ),
                ],
            ),
            wr.H1("Trainings, grouped by ranker; the band is the spread over seeds"),
            wr.PanelGrid(
                runsets=[trainings],
                panels=[wr.LinePlot(title=metric, y=[metric], layout=wr.Layout(w=8, h=6)) for metric in TRAINING],
            ),
            wr.H1("Query by query"),
            wr.P("Each query with its text, its mean over the seeds, and every test of significance."),
            wr.PanelGrid(
                runsets=[summaries],
                panels=[wr.WeavePanelSummaryTable(table_name=table, layout=wr.Layout(w=24, h=10)) for table in tables],
            ),
            wr.P("The summary runs have results.html as a page too (report)."),
        ],
    )  # fmt: skip


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("wandb_report.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--entity", required=True, help="your W&B user or team")
    parser.add_argument("--project", default=os.environ.get("WANDB_PROJECT", PROJECT))
    parser.add_argument("--data", default="pydocs_passage", help="as in the runs' labels")
    arguments = parser.parse_args(argv)
    try:
        report = build_report(arguments.entity, arguments.project, arguments.data)
    except ImportError as error:
        raise UserError("the package is not installed: pip install wandb-workspaces") from error
    try:
        report.save(draft=True)
    except Exception as error:  # no login, no network, no such entity: the client has no common class of errors
        raise UserError(f"W&B does not accept the report ({str(error).splitlines()[0][:200]})") from error
    print(report.url)


if __name__ == "__main__":
    sys.exit(run_script(main))
