"""Which TRL is here, and what another one would do."""

import os
import warnings
from importlib.metadata import PackageNotFoundError, version

TRL = "1.16.0"
DIFFERENT = (  # first version that has it, what an older one does
    ("1.10.0", "use_bias_correction_kl is not on by default"),
    ("1.9.0", "kl is the mean over processes of their means"),
    ("1.7.0", "_get_per_token_logps_and_entropies returns two values, not three"),
    ("0.22.0", "RLOOTrainer has other methods, beta is kl_coef"),
)


class OtherTRL(ImportError):
    """TRL is missing, or another version; a notebook shows the message alone."""

    def _render_traceback_(self):
        return [str(self)]


def requires_trl():
    """Raise an OtherTRL of one line unless TRL 1.16.0 is installed."""
    try:
        found = version("trl")
    except PackageNotFoundError:
        found = None
    if found == TRL:
        return
    seen = f"trl {found} is installed" if found else "trl is not installed"
    text = f"{seen}; lesson 08 needs {TRL}: pip install -r requirements-trl.txt"
    if found:
        number = _number(found)
        older = [what for since, what in DIFFERENT if number < _number(since)]
        later = "later names and defaults have not been compared"
        text += f". In {found}: {'; '.join(older) or later}"
    raise OtherTRL(text)


def quiet():
    """Nothing is looked up or downloaded, and no bars, tables or warnings shown."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore", module="transformers|trl|accelerate|torch")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _number(text):
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())
