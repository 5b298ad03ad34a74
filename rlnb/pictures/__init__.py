"""The figures of the lessons, one module a lesson: numbers in, Picture out."""
