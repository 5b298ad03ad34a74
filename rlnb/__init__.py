"""rlnb: the formulas, pictures and sliders behind the lessons in notebooks/.

Formulas: kl, score, estimators, advantages, trajectories, sequences, clipping,
with `inputs` for what they all refuse. Figures: pictures. Drawing and sliders:
show.
"""
