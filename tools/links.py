"""Write README.md's table of lessons, and the Binder links in it.

The repository's address stands in pyproject.toml alone; the title and the
minutes of a lesson come from its first cells.
"""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
BINDER = "https://mybinder.org/v2/gh"
# A lesson that is there gives its own title.
LESSONS = {
    "00_start_here": "Start here",
    "01_two_responses": "Two responses",
    "02_score_function": "The score function",
    "03_kl_estimators": "KL estimators",
    "04_critic_and_baselines": "Critic and baselines",
    "05_trajectory_kl": "KL along a trajectory",
    "06_clip_branches": "The branches of the clip",
    "07_training_run": "A training run",
    "08_real_trainers": "Real trainers",
}


def title_and_minutes(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    prose = "\n\n".join(
        "".join(c["source"]) for c in cells if c["cell_type"] == "markdown"
    )
    title = re.search(r"(?m)^# +(?:\d\d\W+)?(.+)", prose)[1].strip()
    minutes = re.search(r"(\d+)\s+min", prose)
    return title, minutes[1] if minutes else ""


def table(root):
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    repository = project["project"]["urls"]["Repository"]
    owner_and_name = "/".join(repository.rstrip("/").split("/")[-2:])
    rows = ["| Lesson | Minutes | Without installing |", "|---|---|---|"]
    for name, title in LESSONS.items():
        file = f"notebooks/{name}.ipynb"
        if not (root / file).exists():
            rows.append(f"| {name[:2]} · {title} | | coming |")
            continue
        title, minutes = title_and_minutes(root / file)
        binder = f"{BINDER}/{owner_and_name}/HEAD?urlpath=lab/tree/{file}"
        lesson = f"[{name[:2]} · {title}]({file})"
        rows.append(f"| {lesson} | {minutes} | [Binder]({binder}) |")
    return "\n".join(rows)


def with_table(readme, root=ROOT):
    start, end = "<!-- lessons -->\n", "\n<!-- /lessons -->"
    before, _, rest = readme.partition(start)
    _, _, after = rest.partition(end.strip())
    return f"{before}{start}{table(root)}{end}{after}"


def main():
    path = ROOT / "README.md"
    path.write_text(with_table(path.read_text("utf-8")), "utf-8", newline="\n")


if __name__ == "__main__":
    main()
