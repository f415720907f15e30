"""The command line: cavalcade train | resume | evaluate | play | plot | check | table | graph | systems |
presets."""

import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cavalcade import __version__
from cavalcade.config import Setting, described, setting
from cavalcade.errors import UserError, nearest
from cavalcade.options import HELP, actor_options, environment_options, given, help_lines, parse, positionals
from cavalcade.programs import ProgramFailed
from cavalcade.records import score

USAGE = """cavalcade: large-scale reinforcement learning that anyone can read, run and trust

  cavalcade train SYSTEM ENV [--steps N] [--seed S] [--out DIR] [--backend torch|jax|numpy] ...
  cavalcade train CONFIG.json [--out DIR]       the run of a config.json once more
  cavalcade resume RUN [--steps N]              go on with a run that was interrupted or killed, or extend it
  cavalcade evaluate RUN [--episodes K] [--seed S] [--sampled] [--environment ENV] [--json]
  cavalcade play RUN [--out FILE.mp4] [--seed S] [--sampled] [--environment ENV]
  cavalcade plot RUN... [--out FILE.png] [--by step|time] [--metric NAME] [--label A B ...]
  cavalcade check ENV [--steps N] [--option NAME=VALUE] [--json]      what is wrong with an environment
  cavalcade table RUN [--table K] [--item N]    what the run's tables held at its last checkpoint
  cavalcade graph SYSTEM [ENV] [--actors N]     the system's program as a Mermaid flow chart
  cavalcade systems [--matrix]                  what can be trained, with papers; what runs in which wiring
  cavalcade presets [SYSTEM] [ENV]              settings known to suit an environment, which train uses; with sources

cavalcade train SYSTEM ENV --help lists every setting with its value for that environment and where it comes from;
--help learning shows one group of them."""
TRAIN_WHAT = (
    "Say which system and which environment, for example: cavalcade train ppo CartPole-v1, or, with a function of "
    "yours: cavalcade train ppo --environment module:function."
)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    # set before NumPy is imported: for small matrices one thread is faster than several, much faster on a busy machine
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = list(sys.argv[1:] if argv is None else argv)
    name, rest = arguments[0] if arguments else "help", arguments[1:]
    try:
        if name in ("-h", "--help", "help"):
            print(USAGE, flush=True)
            return 0
        if name == "--version":
            print(f"cavalcade {__version__}", flush=True)
            return 0
        if name not in COMMANDS:
            raise UserError(
                f"There is no command '{name}'; choose one of {', '.join(COMMANDS)}.{nearest(name, COMMANDS)}"
            )
        code = COMMANDS[name](rest)
        sys.stdout.flush()
        return code or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ProgramFailed as failure:  # its message has the traceback of the process that failed
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has gone; without this Python would complain when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def train(arguments: list[str]) -> None:
    if arguments and arguments[0].endswith(".json"):
        return _train_again(arguments)
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments[:2]))
    wants_help = bool(set(HELP) & set(arguments))
    if not words:
        if wants_help:
            print(USAGE)
            return None
        raise UserError(TRAIN_WHAT)
    from cavalcade.experiment import ALGORITHMS, Settings, find

    kind = ALGORITHMS[find(words[0]).algorithm]
    options, rest = environment_options(arguments[len(words) :])
    declared = {**described(Train), **described(Settings), **described(kind)}
    if wants_help:
        return _help_for_training(words, options, rest, declared)
    values = given(declared, rest, f"train {' '.join(words)}")
    named = values.pop("environment", None)
    if len(words) > 1 and named:
        raise UserError(f"The environment is {words[1]} or --environment {named}, not both.")
    if len(words) < 2 and not named:
        raise UserError(TRAIN_WHAT)
    from cavalcade.runs.training import train as run_training

    values["from_run"] = values.pop("from_", None)
    values["actor_options"] = actor_options(values.pop("actor_option", ()))
    run_training(words[0], named or words[1], options=options, **values)
    return None


@dataclasses.dataclass(frozen=True)
class Train:
    """Settings of `cavalcade train` that are neither of the run nor of the algorithm."""

    out: Path | None = setting(None, "the run folder; none is runs/SYSTEM-ENV-sSEED", "run")
    environment: str | None = setting(
        None, "module:function that makes the environment, in the place of ENV", "execution"
    )
    from_: Path | None = setting(None, "the run folder whose policy this run begins from", "run")
    actor_option: tuple[str, ...] = setting(
        (), "name=v1,v2,...: an option of the environment whose values actors take in turn", "exploration"
    )


def _help_for_training(words: list[str], options: dict, rest: list[str], declared: dict[str, Setting]) -> None:
    """Print every setting, by group, with its value for this environment and the source of the value. `rest` has the
    word --help, perhaps with one group after it, which is then printed alone; and values that are given."""
    from cavalcade.experiment import GROUPS, Settings, chosen, find, find_preset, has_images, probe

    at = next(place for place, word in enumerate(rest) if word in HELP)
    wanted = [word for word in rest[at + 1 : at + 2] if not word.startswith("-")]
    for word in wanted:
        if word not in GROUPS:
            raise UserError(
                f"There is no group '{word}' of settings; there are {', '.join(GROUPS)}.{nearest(word, GROUPS)}"
            )
    asked = given(declared, rest[:at] + rest[at + 1 + len(wanted) :], f"train {' '.join(words)}")
    system, *environment = words
    found, settings = find(system), list(declared.values())
    preset = find_preset(system, environment[0] if environment else None, asked.get("preset", "auto"))
    values = {one.name: (one.default, "default") for one in settings}
    values |= chosen(system, has_images(probe(environment[0], options)) if environment else False, preset)
    values |= {name: (value, preset.told) for name, value in preset.of(Settings).items()}
    values |= {name: (value, "given") for name, value in asked.items()}
    where = f" on {environment[0]}" if environment else " (values for vectors; name an environment to see its own)"
    print(f"cavalcade train {system} ENV [--setting value ...]: {found.about}\n{found.paper}\n")
    print(f"Every setting of {system}{where}. One group alone: --help GROUP.")
    for group, sentence in GROUPS.items():
        members = [one for one in settings if one.about.group == group]
        if members and (not wanted or group == wanted[0]):
            print(f"\n{group}: {sentence}")
            print("\n".join(help_lines(members, values)), flush=True)
    if not wanted:
        print("\n--option name=value goes to the environment.", flush=True)


def _as_dict(config: Any) -> dict:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _train_again(arguments: list[str]) -> None:
    """`cavalcade train CONFIG.json`: the run of a config once more."""

    @dataclasses.dataclass(frozen=True)
    class Again:
        out: Path | None = setting(None, "the run folder")

    path = Path(arguments[0])
    chosen = parse(Again, arguments[1:], f"train {path}")
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.") from None
    from cavalcade.runs.training import repeat

    repeat(config, out=chosen.out)


def resume(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Resume:
        steps: int | None = setting(None, "a new total for the whole run", at_least=1)
        environment: str | None = setting(None, "module:function, of a run that was made with an environment object")

    [path], rest = positionals(arguments, 1, "resume RUN [--steps N]")
    chosen = parse(Resume, rest, "resume RUN")
    from cavalcade.runs.training import resume as run_resume

    run_resume(path, steps=chosen.steps, environment=chosen.environment)


def evaluate(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Evaluate:
        episodes: int = setting(100, "whole ones", at_least=1)
        seed: int = setting(0, "of the episodes", at_least=0)
        environment: str | None = setting(None, "another one with the same spaces, an id or module:function")
        sampled: bool = setting(False, "acts with the noise of training instead of greedily")
        json: bool = setting(False, "one JSON object instead of a sentence")

    options, arguments = environment_options(arguments)
    [path], rest = positionals(arguments, 1, "evaluate RUN [--episodes K] [--seed S] [--json]")
    chosen = parse(Evaluate, rest, "evaluate RUN")
    from cavalcade.runs.progress import EpisodesPlayed
    from cavalcade.runs.trained import evaluate as judge

    progress = EpisodesPlayed(chosen.episodes)
    try:
        named = {"environment": chosen.environment, "options": options or None}
        result = judge(path, chosen.episodes, chosen.seed, sampled=chosen.sampled, progress=progress, **named)
    finally:
        progress.close()
    if chosen.json:
        print(json.dumps(result))
        return
    kind = "sampled episodes" if result["sampled"] else "episodes"
    elsewhere = ""
    if options or result["environment"] != result["trained_on"]:
        with_options = "".join(f" {name}={value}" for name, value in result["options"].items())
        elsewhere = f" on {result['environment']}{with_options}, trained on {result['trained_on']}"
    shown = {name: score(value) for name, value in result.items() if isinstance(value, (int, float))}
    print(
        "mean {mean} (95 % interval {ci_low} to {ci_high}), median {median}, std {std}, min {min}, max {max} over "
        "{episodes}".format(**shown)
        + f" {kind}{elsewhere}"
    )


def play(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Play:
        out: Path | None = setting(None, "the film, .mp4 or .gif; none is episode.mp4 in the run folder")
        seed: int = setting(0, "of the episode", at_least=0)
        environment: str | None = setting(None, "another one with the same spaces, an id or module:function")
        sampled: bool = setting(False, "acts with the noise of training instead of greedily")

    options, arguments = environment_options(arguments)
    [path], rest = positionals(arguments, 1, "play RUN [--out FILE.mp4] [--seed S]")
    chosen = parse(Play, rest, "play RUN")
    from cavalcade.runs.trained import play as film

    named = {"environment": chosen.environment, "options": options or None}
    video, total = film(path, chosen.out, chosen.seed, sampled=chosen.sampled, **named)
    print(f"return {score(total)}, film in {video}")


def plot(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Plot:
        out: Path = setting(Path("curves.png"), "the picture: .png, .svg or .pdf")
        by: str = setting("step", "the horizontal axis: step or time")
        metric: str = setting("return", "what is drawn: any name in metrics.jsonl")
        label: tuple[str, ...] = setting((), "of each run folder or of each line, in order; none is what differs")

    paths, rest = positionals(arguments, 0, "plot RUN... [--out FILE.png] [--by step|time]")
    chosen = parse(Plot, rest, "plot RUN...")
    from cavalcade.records import draw_runs

    draw_runs([Path(path) for path in paths], chosen.out, chosen.by, chosen.metric, chosen.label)
    print(f"drawn in {chosen.out}")


def check(arguments: list[str]) -> int:
    @dataclasses.dataclass(frozen=True)
    class Check:
        steps: int = setting(1_000, "with random legal actions", at_least=1)
        seed: int = setting(0, "of the episodes and the actions", at_least=0)
        json: bool = setting(False, "a list of JSON objects instead of lines")

    options, rest = environment_options(arguments)
    [environment], rest = positionals(rest, 1, "check ENV [--steps N] [--option NAME=VALUE] [--json]")
    chosen = parse(Check, rest, "check ENV")
    from cavalcade.runs.checking import check as examine

    findings = examine(environment, options=options, steps=chosen.steps, seed=chosen.seed)
    if chosen.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        for found in findings:
            print(f"{found.level:<8} {found.about:<13} {found.sentence}")
    return int(any(finding.level == "error" for finding in findings))


def look_into_table(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Look:
        table: int | None = setting(None, "one table, by its number, of a run with several")
        item: int | None = setting(None, "one item, by the number of its insert; -1 is the newest")

    [path], rest = positionals(arguments, 1, "table RUN [--table K] [--item N]")
    chosen = parse(Look, rest, "table RUN")
    from cavalcade.runs.inspection import look

    for line in look(path, chosen.table, chosen.item):
        print(line)


def graph(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Graph:
        actors: int = setting(2, "workers that act", at_least=1)
        evaluations: int = setting(1, "0 draws the program without its evaluator", at_least=0)
        acting: str = setting("", "local or central")
        experience: str = setting("", "shared, shards or bundled")
        updates: str = setting("", "own, allreduce, parameter-server or hogwild")
        learners: int = setting(0, "that update together", at_least=0)

    words = [word for word in arguments[:2] if not word.startswith("-")]
    if not words and not {"-h", "--help"} & set(arguments):
        raise UserError("Usage: cavalcade graph SYSTEM [ENV] [--actors N]")
    chosen = parse(Graph, arguments[len(words) :], "graph SYSTEM [ENV]")
    from cavalcade.experiment import Experiment, example, run_settings

    system, environment = words if len(words) == 2 else (words[0], example(words[0]))
    settings = run_settings(system, environment, _as_dict(chosen))
    print(Experiment.create(system, environment, settings, {}).program().graph())


def list_systems(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Systems:
        matrix: bool = setting(False, "which algorithm runs in which wiring of acting, experience and updates")

    if parse(Systems, arguments, "systems").matrix:
        from cavalcade.experiment import table

        print("\n".join(table()))
        return
    from cavalcade.experiment import SYSTEMS

    for name, system in SYSTEMS.items():
        print(f"{name:<12} {system.algorithm} under {system.architecture}: {system.about}\n{'':<12} {system.paper}")


def list_presets(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Presets:
        """It has no options."""

    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments[:2]))
    parse(Presets, arguments[len(words) :], "presets [SYSTEM] [ENV]")
    from cavalcade.experiment import preset_listing

    print("\n".join(preset_listing(*words)))


COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "play": play,
    "plot": plot,
    "check": check,
    "table": look_into_table,
    "graph": graph,
    "systems": list_systems,
    "presets": list_presets,
}

if __name__ == "__main__":
    sys.exit(main())
