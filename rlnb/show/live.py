"""A picture that the kernel replaces while it works."""

from .explore import View, pack_one


class Live(View):
    """Shows a Picture; `show` puts another in its place.

    There is no still image of it: what a page without a kernel shows is the
    picture that is drawn at the end.
    """

    def __init__(self, picture):
        super().__init__(**pack_one(picture))

    def show(self, picture):
        with self.hold_sync():  # one message, or the page draws half of it
            for name, value in pack_one(picture).items():
                setattr(self, name, value)
