"""What each metric is called, where TensorBoard and loggers show it, and what it means.

`metrics.jsonl` has flat names. TensorBoard and loggers show the same numbers in groups, under the tags below. The table
in the guide is made from this one.
"""

from typing import NamedTuple


class Metric(NamedTuple):
    """What is said of one metric, or of a family whose names begin alike."""

    tag: str  # group/name
    about: str


METRICS = {
    "step": Metric("step", "environment steps so far, of all actors; what the others are drawn against"),
    "time": Metric("time/elapsed", "seconds since the run began, earlier sittings included"),
    "return": Metric("return/mean", "mean return of the episodes that ended since the last row; left out if none did"),
    "return_median": Metric("return/median", "median return of the last 100 episodes"),
    "return_low": Metric("return/low", "lower quartile of the last 100 episodes"),
    "return_high": Metric("return/high", "upper quartile of the last 100 episodes"),
    "episodes": Metric("return/episodes", "episodes that have ended so far"),
    "episode_length": Metric("return/length", "mean length in steps of the episodes that ended since the last row"),
    "evaluation": Metric("evaluation/mean", "mean return of an evaluation's episodes"),
    "evaluation_step": Metric("evaluation/step", "environment steps that had been made when it was judged"),
    "loss": Metric("loss/total", "what is minimised; like all that updates tell, a mean since the last row"),
    "policy_loss": Metric("loss/policy", "the part that moves the policy towards better actions"),
    "value_loss": Metric("loss/value", "half the squared error of the predicted returns"),
    "entropy": Metric("learning/entropy", "of the policy, in nats: falls as it makes up its mind; 0 is no choice left"),
    "entropy_cost": Metric("learning/entropy_cost", "with a schedule: the weight of the entropy in the loss"),
    "explained_variance": Metric(
        "learning/explained_variance",
        "how much of the returns' variance the values predict: 1 is all, 0 none; less misleads (no lower than -1)",
    ),
    "approx_kl": Metric("learning/approx_kl", "how far the policy moved in a draw: mean of (ratio - 1) - log ratio"),
    "clip_fraction": Metric("learning/clip_fraction", "share of samples whose ratio lies outside 1 +- clip"),
    "kl": Metric("learning/kl", "with a penalty: the exact divergence from the policy that acted"),
    "kl_coefficient": Metric("learning/kl_coefficient", "with a penalty: its weight"),
    "rho": Metric("learning/rho", "mean of V-trace's ratios, none above 1: how much of the data still counts"),
    "q": Metric("learning/q", "mean of the predicted action values; it should settle near the returns to come"),
    "value": Metric("learning/value", "mean of what the first critic predicts for the actions that were taken"),
    "policy_value": Metric("learning/policy_value", "mean of what the first critic predicts for the policy's actions"),
    "outside_support": Metric(
        "learning/outside_support", "with atoms: share of the critics' targets that lies beyond them; it should be 0"
    ),
    "temperature": Metric(
        "learning/temperature", "what a nat of entropy is worth, or the temperature of MPO's weights"
    ),
    "kl_mean": Metric(
        "learning/kl_mean", "of MPO: divergence of the policy's mean from the target policy's, per entry"
    ),
    "kl_deviation": Metric("learning/kl_deviation", "the same of its deviation"),
    "deviation": Metric("learning/deviation", "of a Gaussian policy, in half-widths of the Box, mean over its entries"),
    "error": Metric("learning/error", "mean size of the temporal-difference error"),
    "gradient_norm": Metric("learning/gradient_norm", "global norm of the gradient before it is clipped"),
    "learning_rate": Metric("learning/learning_rate", "of the next update, as the schedule has it"),
    "exploration_rate": Metric("learning/exploration_rate", "share of random actions, mean over all environments"),
    "updates": Metric("learning/updates", "updates of the parameters so far"),
    "policy_lag": Metric("learning/policy_lag", "updates between the policy that acted and the one that learns"),
    "dropped_stale": Metric("learning/dropped_stale", "unrolls or gradients that came too late to count"),
    "dropped_late": Metric("learning/dropped_late", "gradients of stragglers that an all-reduce did without"),
    "dropped_outlying": Metric("learning/dropped_outlying", "gradients whose loss lay too far above the others"),
    "rollbacks": Metric("learning/rollbacks", "times a parameter server went back to its snapshot"),
    "table_size": Metric("table/size", "items in the table"),
    "table_capacity": Metric("table/capacity", "items that it can hold"),
    "time_in_table_seconds": Metric("table/seconds", "age in seconds of what was drawn"),
    "replay_age": Metric("table/replay_age", "with replay: updates made since what was drawn was acted"),
    "steps_per_second": Metric("speed/steps_per_second", "environment steps each second, over ten rows or more"),
    "frames_per_second": Metric("speed/frames_per_second", "frames that the environments played each second"),
    "updates_per_second": Metric("speed/updates_per_second", "updates each second, over ten rows or more"),
    "adjusted": Metric("active/adjusted", "sentences on what `--adjust-every` changed; in `metrics.jsonl` only"),
}


class Alarm(NamedTuple):
    """A metric above this number says that a run learns something wrong; the sentence says what to change."""

    above: float
    sentence: str


ALARMS = {
    "outside_support": Alarm(
        0.05,
        "More than 5 % of the returns that critics learn lie outside their atoms, where they are cut off; give a lower "
        "--value-low or a higher --value-high.",
    )
}
FAMILIES = {  # by the beginning of their names
    "time_": Metric("time/", "`time_ROLE`, `time_KIND_ROLE`: share of the time of all, or of a kind of process"),
    "active_": Metric("active/", "`active_KIND`: predictors, learners or actors that are active with `--adjust-every`"),
    "env/": Metric("env/", "`env/NAME`: a number that the environment put into its `info`"),
}
OTHERS = "learning/"  # the group of all other metrics, such as those of a user's own loss


def tag(name: str) -> str:
    """The metric's name in TensorBoard and in loggers."""
    if name in METRICS:
        return METRICS[name].tag
    for beginning, family in FAMILIES.items():
        if name.startswith(beginning):
            return family.tag + name.removeprefix(beginning)
    return OTHERS + name


def explained(name: str) -> bool:
    """Whether the metric is in the tables above."""
    return name in METRICS or name.startswith(tuple(FAMILIES))


def tagged(row: dict) -> dict[str, float]:
    """The numbers of a row by their tags, without its step."""
    numbers = {name: x for name, x in row.items() if isinstance(x, int | float) and name != "step"}
    return {tag(name): float(x) for name, x in numbers.items()}


def guide() -> list[str]:
    """The lines of the table in the guide."""
    known = [f"| `{name}` | `{metric.tag}` | {metric.about} |" for name, metric in METRICS.items()]
    return known + [f"| `{start}...` | `{metric.tag}...` | {metric.about} |" for start, metric in FAMILIES.items()]
