"""The command line: cavalcade train | resume | evaluate | play | plot | check | table | graph | systems."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cavalcade.errors import UserError, nearest
from cavalcade.options import environment_options, parse, positionals

USAGE = """cavalcade: large-scale reinforcement learning that anyone can read, run and trust

  cavalcade train SYSTEM ENV [--steps N] [--seed S] [--out DIR] [--backend torch|jax|numpy] ...
  cavalcade train CONFIG.json [--out DIR]       the run of a config.json once more
  cavalcade resume RUN                          go on with a run that was interrupted or killed
  cavalcade evaluate RUN [--episodes K] [--seed S] [--json]
  cavalcade play RUN [--out FILE.mp4] [--seed S]
  cavalcade plot RUN... [--out FILE.png] [--by step|time]
  cavalcade check ENV [--steps N] [--option NAME=VALUE] [--json]      what is wrong with an environment
  cavalcade table RUN [--item N]                what the run's table held at its last checkpoint
  cavalcade graph SYSTEM [ENV] [--actors N]     the system's program as a Mermaid flow chart
  cavalcade systems [--matrix]                  what can be trained, with papers; what runs under which row

cavalcade train SYSTEM ENV --help lists every setting with its value for that environment."""


def main(argv: list[str] | None = None) -> int:
    # before anything imports NumPy: for small matrices one thread is faster than several, many times on a busy machine
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = list(sys.argv[1:] if argv is None else argv)
    name, rest = arguments[0] if arguments else "help", arguments[1:]
    try:
        if name in ("-h", "--help", "help"):
            print(USAGE, flush=True)
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
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has gone; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def train(arguments: list[str]) -> None:
    if arguments and arguments[0].endswith(".json"):
        return _train_again(arguments)
    words = [a for a in arguments[:2] if not a.startswith("-")]
    if len(words) < 2:
        if "--help" in arguments or "-h" in arguments:
            print(USAGE)
            return None
        raise UserError("Say which system and which environment, for example: cavalcade train ppo CartPole-v1.")
    from cavalcade import systems

    system, environment = words
    systems.find(system)
    options, rest = environment_options(arguments[2:])
    from cavalcade.experiment import Settings, algorithm_for, probe
    from cavalcade.training import train as run_training

    defaults = algorithm_for(system, probe(environment, options), {})
    fields = [
        ("out", Path | None, None),
        ("settings", Settings, Settings()),
        ("algorithm", type(defaults), defaults),
    ]
    kind = dataclasses.make_dataclass("Train", fields, frozen=True)
    given = parse(kind, rest, f"train {system} {environment}")
    overrides = {**_as_dict(given.settings), **_as_dict(given.algorithm)}
    run_training(system, environment, out=given.out, options=options, **overrides)
    return None


def _as_dict(config: Any) -> dict:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _train_again(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Again:
        out: Path | None = None

    path = Path(arguments[0])
    given = parse(Again, arguments[1:], f"train {path}")
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.") from None
    from cavalcade.training import repeat

    repeat(config, out=given.out)


@dataclasses.dataclass(frozen=True)
class Nothing:
    """No options."""


def resume(arguments: list[str]) -> None:
    [path], rest = positionals(arguments, 1, "resume RUN")
    parse(Nothing, rest, "resume RUN")
    from cavalcade.training import resume as run_resume

    run_resume(path)


def evaluate(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Evaluate:
        episodes: int = 100
        seed: int = 0
        environment: str | None = None  # another one with the same spaces
        json: bool = False  # one JSON object instead of a sentence

    [path], rest = positionals(arguments, 1, "evaluate RUN [--episodes K] [--seed S] [--json]")
    given = parse(Evaluate, rest, "evaluate RUN")
    if given.episodes < 1:
        raise UserError(f"--episodes is {given.episodes}; it has to be at least 1.")
    from cavalcade.trained import evaluate as judge

    result = judge(path, given.episodes, given.seed, given.environment)
    if given.json:
        print(json.dumps(result))
    else:
        print(
            "mean {mean:.2f} (95 % interval {ci_low:.2f} to {ci_high:.2f}), median {median:.2f}, std {std:.2f}, "
            "min {min:.2f}, max {max:.2f} over {episodes} episodes".format(**result)
        )


def play(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Play:
        out: Path | None = None  # .mp4 or .gif
        seed: int = 0

    [path], rest = positionals(arguments, 1, "play RUN [--out FILE.mp4] [--seed S]")
    given = parse(Play, rest, "play RUN")
    from cavalcade.trained import play as film

    video, total = film(path, given.out, given.seed)
    print(f"return {total:.1f}, film in {video}")


def plot(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Plot:
        out: Path = Path("curves.png")
        by: str = "step"  # step, time

    paths, rest = positionals(arguments, 0, "plot RUN... [--out FILE.png] [--by step|time]")
    given = parse(Plot, rest, "plot RUN...")
    from cavalcade.plotting import draw_runs

    draw_runs([Path(path) for path in paths], given.out, given.by)
    print(f"drawn in {given.out}")


def check(arguments: list[str]) -> int:
    @dataclasses.dataclass(frozen=True)
    class Check:
        steps: int = 1_000  # with random legal actions
        seed: int = 0
        json: bool = False  # a list of JSON objects instead of lines

    options, rest = environment_options(arguments)
    [environment], rest = positionals(rest, 1, "check ENV [--steps N] [--option NAME=VALUE] [--json]")
    given = parse(Check, rest, "check ENV")
    from cavalcade.checking import check as examine

    findings = examine(environment, options=options, steps=given.steps, seed=given.seed)
    if given.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        for found in findings:
            print(f"{found.level:<8} {found.about:<13} {found.sentence}")
    return int(any(finding.level == "error" for finding in findings))


def look_into_table(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Look:
        item: int | None = None  # one item, by the number of its insert; -1 is the newest

    [path], rest = positionals(arguments, 1, "table RUN [--item N]")
    given = parse(Look, rest, "table RUN")
    from cavalcade.inspection import describe, describe_item, load_table

    table, step, version = load_table(path)
    print(f"table of {path} at step {step:,}")
    try:
        print("\n".join(describe(table, version) if given.item is None else describe_item(table, given.item)))
    finally:
        table.close()


def graph(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Graph:
        actors: int = 2
        evaluations: int = 1  # 0 draws the program without its evaluator
        acting: str = ""  # local, central
        experience: str = ""  # shared, shards, bundled
        updates: str = ""  # own, allreduce, parameter-server, hogwild
        learners: int = 0

    words = [word for word in arguments[:2] if not word.startswith("-")]
    if not words and not {"-h", "--help"} & set(arguments):
        raise UserError("Usage: cavalcade graph SYSTEM [ENV] [--actors N]")
    given = parse(Graph, arguments[len(words) :], "graph SYSTEM [ENV]")
    system, environment = (*words, "CartPole-v1")[:2]
    from cavalcade.experiment import Experiment, Settings

    settings = Settings(**_as_dict(given))
    print(Experiment.create(system, environment, settings, {}).program().graph())


def list_systems(arguments: list[str]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Systems:
        matrix: bool = False  # which algorithm runs under which row of acting, experience and updates

    if parse(Systems, arguments, "systems").matrix:
        from cavalcade.matrix import table

        print("\n".join(table()))
        return
    from cavalcade.systems import SYSTEMS

    for name, system in SYSTEMS.items():
        print(f"{name:<12} {system.algorithm} under {system.architecture}: {system.about}\n{'':<12} {system.paper}")


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
}

if __name__ == "__main__":
    sys.exit(main())
