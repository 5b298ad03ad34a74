"""rlnb: the formulas, pictures and sliders behind the lessons in notebooks/.

Formulas, one module a lesson: kl, sequences, clipping. Pictures: pictures.
Drawing and sliders: show.
"""
