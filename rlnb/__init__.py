"""rlnb: the formulas, pictures and runs behind the lessons in notebooks/.

Formulas: kl, score, estimators, advantages, trajectories, sequences, clipping,
preferences, with `inputs` for what they all refuse. Figures: pictures. Drawing
and sliders: show. Lesson 07's run: training. Lesson 08's bridge to TRL: trainers.
"""
