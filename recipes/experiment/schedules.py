"""Learning rates of the recipes for images.

A recipe imports it from beside itself.
"""


def piecewise(rates, drops, total):
    """A schedule of learning rates whose drops, at fractions of the paper's `total`, scale along.

    Args:
        rates: Learning rates, one more than drops.
        drops: When each ends, in the unit of `total`.
        total: The paper's length.

    Returns:
        A function of the number of iterations to a Keras schedule.
    """

    def of(iterations):
        import keras

        ends = [round(drop * iterations / total) for drop in drops]
        return keras.optimizers.schedules.PiecewiseConstantDecay(ends, rates)

    return of
