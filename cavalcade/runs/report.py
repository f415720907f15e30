"""The report at the end of a run: where the time went, what bounded the run, which nodes failed and were recovered.

It is written to `report.json` and shown. Shares of time, policy lag, replay age and remarks are those of the last
sitting; all else is of the whole run.
"""

import json
from pathlib import Path
from typing import Any

from cavalcade.checkpoints import write_atomically
from cavalcade.errors import UserError
from cavalcade.programs import ROLES
from cavalcade.records import Run, number, write_failure
from cavalcade.runs.budget import Bottleneck, Budget
from cavalcade.runs.metrics import Metrics

SHOWN_FAULTS = 10
# setting -> what brings the first update sooner
SOONER = {"replay_start": "a smaller --replay-start", "unroll": "a shorter --unroll"}
OTHER = "other"  # time that no role has booked: bookkeeping, reports, checkpoints


def make(run: Run, metrics: Metrics, bottleneck: Bottleneck | None, best: float | None) -> dict[str, Any]:
    """The report as JSON values. `best`: the best evaluation. Shares are of the time of all processes of a kind."""
    found = None
    if bottleneck is not None:
        found = {**bottleneck._asdict(), "sentence": bottleneck.sentence}
    return {
        "steps": metrics.step,
        "updates": metrics.updates,
        "seconds": metrics.elapsed,
        "best_evaluation": best,
        "evaluation_sampled": run.config.get("evaluation_sampled", False),
        "policy_lag": metrics.policy_lag,
        "replay_age": metrics.replay_age,
        "replay_share": metrics.replay_share,
        "budget": {kind: _row(budget, kind) for budget in [metrics.budget()] for kind in budget},
        "bottleneck": found,
        "adjustments": metrics.adjustments,
        "remarks": list(metrics.remarks.values()),
        "faults": faults(run),
        "warnings": _warnings(run, metrics),
    }


def _warnings(run: Run, metrics: Metrics) -> list[str]:
    """Sentences on what went wrong although nothing failed: no update was made."""
    if metrics.updates:
        return []
    settings = run.config.get("algorithm", {})
    ways = ["more --steps", *(way for name, way in SOONER.items() if name in settings)]
    return [f"No update was made: the run ended before learning began; give it {' or '.join(ways)}."]


def _row(budget: Budget, kind: str) -> dict[str, Any]:
    """One kind of process: how many there are, and the share of every role, which add up to 1 with OTHER."""
    spent = budget[kind]
    shares = {role: spent.shares.get(role, 0.0) for role in ROLES}
    return {"processes": spent.processes, **shares, OTHER: max(0.0, 1.0 - sum(shares.values()))}


def faults(run: Run) -> list[dict]:
    """All faults of a run, without their tracebacks. A line torn by a crash is left out."""
    path, found = run.faults_file, []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            found.append({name: value for name, value in json.loads(line).items() if name != "traceback"})
        except ValueError:
            continue
    return found


def write(report: dict[str, Any], path: Path) -> None:
    try:
        write_atomically(path, json.dumps(report, indent=2).encode())
    except OSError as error:
        raise UserError(write_failure(path, error)) from error


def lines(report: dict[str, Any], styled: bool) -> list[str]:
    """The report for a person: with a coloured table if `styled`, with aligned text otherwise."""
    shown = _styled(report["budget"]) if styled else _aligned(report["budget"])
    if report["bottleneck"]:
        shown.append(f"bottleneck: {report['bottleneck']['sentence']}")
    if report["policy_lag"] is not None:
        shown.append(f"policy lag: {number(round(report['policy_lag'], 3))} updates in the mean")
    if report["replay_age"] is not None:
        where = "in replay" if report["replay_share"] == 1 else "from queue and replay"
        shown.append(f"data {where}: {number(round(report['replay_age'], 3))} updates old in the mean")
    if made := report["adjustments"]:
        kept = sum(one["kept"] for one in made)
        shown.append(f"adjustments: {len(made)}, of which {kept} kept; the last: {made[-1]['sentence']}")
    shown += [f"warning: {remark}" for remark in report["remarks"]]
    found = report["faults"]
    if found:
        shown.append(f"faults: {len(found)}")
        shown += [
            f"  step {f['step']:,}: {f['node']}: {f['cause']}; {f.get('recovery', 'started again')}"
            for f in found[:SHOWN_FAULTS]
        ]
        if len(found) > SHOWN_FAULTS:
            shown.append(f"  and {len(found) - SHOWN_FAULTS} more in faults.jsonl")
    return shown + [f"warning: {sentence}" for sentence in report["warnings"]]


def _cells(budget: dict[str, dict]) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and a line of cells for each kind of process; roles below 0.5 % everywhere are left out."""
    roles = [role for role in (*ROLES, OTHER) if any(row[role] >= 0.005 for row in budget.values())]
    rows = []
    for kind, row in budget.items():
        who = f"{row['processes']} x {kind}" if row["processes"] > 1 else kind
        rows.append([who, *(f"{row[role] * 100:.0f} %" for role in roles)])
    return ["time of", *roles], rows


def _aligned(budget: dict[str, dict]) -> list[str]:
    head, rows = _cells(budget)
    first = max(len(row[0]) for row in [head, *rows])
    return [
        row[0].ljust(first) + "".join(cell.rjust(len(name) + 2) for name, cell in zip(head[1:], row[1:]))
        for row in [head, *rows]
    ]


def _styled(budget: dict[str, dict]) -> list[str]:
    from rich.console import Console
    from rich.table import Table

    head, rows = _cells(budget)
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)  # all roles fit in 80 columns
    for n, name in enumerate(head):
        table.add_column(name, justify="right" if n else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(force_terminal=True, width=max(100, sum(len(name) + 4 for name in head)))
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]
