import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from avalanche_dlcpa.accuracy_matrix import (
    accuracy_matrix,
    accuracy_over_experiences,
    average_incremental_accuracy,
    backward_transfer,
    check_fractions,
    final_accuracy,
    forgetting,
)

# The scripted case of Avalanche's own check, by hand: BWT = ((.5-.9) + (.7-.8) + (.8-1)) / 3,
# forgetting = ((.9-.5) + (.9-.7) + (1-.8)) / 3; ACC 0.725.
R = np.array(
    [[0.9, 0.2, 0.1, 0.3], [0.7, 0.8, 0.2, 0.1], [0.6, 0.9, 1.0, 0.4], [0.5, 0.7, 0.8, 0.9]]
)
SUMMARIES = (final_accuracy, average_incremental_accuracy, backward_transfer, forgetting)


def matrices(*, min_tasks=1, max_tasks=7):
    fraction = st.floats(0, 1, width=32)
    return st.integers(min_tasks, max_tasks).flatmap(
        lambda num_tasks: arrays(np.float64, (num_tasks, num_tasks), elements=fraction)
    )


def by_loops(matrix):
    """ACC, AIA, BWT and forgetting as plain double loops over tasks counted from 1."""
    num_tasks = len(matrix)
    r = {(i + 1, j + 1): matrix[i][j] for i in range(num_tasks) for j in range(num_tasks)}
    acc = sum(r[num_tasks, j] for j in range(1, num_tasks + 1)) / num_tasks
    aia = sum(sum(r[i, j] for j in range(1, i + 1)) / i for i in range(1, num_tasks + 1))
    if num_tasks == 1:
        return acc, aia / num_tasks, np.nan, np.nan
    bwt, forgotten = 0.0, 0.0
    for j in range(1, num_tasks):
        bwt += r[num_tasks, j] - r[j, j]
        best = r[j, j]
        for i in range(j, num_tasks):
            best = max(best, r[i, j])
        forgotten += best - r[num_tasks, j]
    return acc, aia / num_tasks, bwt / (num_tasks - 1), forgotten / (num_tasks - 1)


def test_scripted_case_by_hand():
    assert final_accuracy(R) == pytest.approx(0.725)
    assert accuracy_over_experiences(R) == pytest.approx([0.9, 0.75, 2.5 / 3, 0.725])
    assert average_incremental_accuracy(R) == pytest.approx((0.9 + 0.75 + 2.5 / 3 + 0.725) / 4)
    assert backward_transfer(R) == pytest.approx(-0.7 / 3)
    assert forgetting(R) == pytest.approx(0.8 / 3)


@given(matrices())
def test_equals_plain_double_loops(matrix):
    ours = [summary(matrix) for summary in SUMMARIES]
    assert ours == pytest.approx(by_loops(matrix), nan_ok=True)
    assert all(isinstance(value, float) for value in ours)


@given(matrices(min_tasks=2))
def test_bounds_and_order(matrix):
    assert 0 <= final_accuracy(matrix) <= 1
    assert 0 <= average_incremental_accuracy(matrix) <= 1
    assert (
        -1 <= backward_transfer(matrix) <= final_accuracy(matrix) * len(matrix) / (len(matrix) - 1)
    )
    assert forgetting(matrix) >= -backward_transfer(matrix) - 1e-12
    assert forgetting(matrix) <= 1


@given(matrices(min_tasks=2), st.randoms(use_true_random=False))
def test_bwt_and_acc_ignore_the_order_of_the_tasks_before_the_last(matrix, random):
    order = list(range(len(matrix) - 1))
    random.shuffle(order)
    order.append(len(matrix) - 1)
    shuffled = matrix[np.ix_(order, order)]
    assert backward_transfer(shuffled) == pytest.approx(backward_transfer(matrix))
    assert final_accuracy(shuffled) == pytest.approx(final_accuracy(matrix))


@given(matrices(min_tasks=2), st.floats(0, 0.5))
def test_a_shift_of_all_accuracies_moves_levels_and_no_differences(matrix, shift):
    low, high = matrix / 2, matrix / 2 + shift
    for level in (final_accuracy, average_incremental_accuracy):
        assert level(high) == pytest.approx(level(low) + shift)
    for difference in (backward_transfer, forgetting):
        assert difference(high) == pytest.approx(difference(low), abs=1e-12)


@given(matrices(min_tasks=2))
def test_monotone_improvement_is_never_forgotten(matrix):
    improving = np.maximum.accumulate(matrix, axis=0)
    assert backward_transfer(improving) >= 0
    assert forgetting(improving) <= 0


@pytest.mark.parametrize(
    ("summary", "is_needed"),
    [
        (final_accuracy, lambda i, j: i == 3),
        (average_incremental_accuracy, lambda i, j: j <= i),
        (backward_transfer, lambda i, j: j < 3 and (i == 3 or i == j)),
        (forgetting, lambda i, j: j < 3 and j <= i),
    ],
)
def test_nan_exactly_where_a_needed_value_is_missing(summary, is_needed):
    for i, j in np.ndindex(4, 4):
        gap = R.copy()
        gap[i, j] = np.nan
        expected = np.nan if is_needed(i, j) else summary(R)
        assert summary(gap) == pytest.approx(expected, nan_ok=True), (i, j)


def test_curve_has_a_gap_only_in_the_row_with_the_missing_value():
    gap = R.copy()
    gap[1, 0] = gap[0, 3] = np.nan
    assert accuracy_over_experiences(gap) == pytest.approx(
        [0.9, np.nan, 2.5 / 3, 0.725], nan_ok=True
    )


def test_one_task_has_no_transfer(recwarn):
    assert final_accuracy([[0.4]]) == average_incremental_accuracy([[0.4]]) == pytest.approx(0.4)
    assert np.isnan(backward_transfer([[0.4]]))
    assert np.isnan(forgetting([[0.4]]))
    assert not recwarn.list


@pytest.mark.parametrize("function", [*SUMMARIES, accuracy_over_experiences])
@pytest.mark.parametrize("shape", [(2, 3), (3,), (0, 0), (2, 2, 2), ()])
def test_other_shapes_are_refused(function, shape):
    with pytest.raises(ValueError, match=r"Expected `accuracies` to be of shape \(T, T\)"):
        function(np.full(shape, 0.5))


@pytest.mark.parametrize("value", [81.4, -0.1, np.inf])
def test_percent_and_other_non_fractions_are_refused(value):
    with pytest.raises(ValueError, match=f"fractions in .0, 1., got {value:g}; divide percent"):
        final_accuracy([[0.5, 0.5], [0.5, value]])


def test_check_fractions_names_the_argument_and_keeps_the_shape():
    assert check_fractions([[0, 1, np.nan]], name="curve").shape == (1, 3)
    with pytest.raises(ValueError, match="Expected `curve` to be fractions"):
        check_fractions([2], name="curve")


def test_inputs_stay_as_they_are():
    before = R.copy()
    for function in (*SUMMARIES, accuracy_over_experiences):
        function(R)
    assert np.array_equal(R, before)


def test_accuracy_matrix_sorts_by_learning_and_then_by_id():
    accuracies = {(7, 7): 0.1, (7, 2): 0.2, (2, 7): 0.3, (2, 2): 0.4, (2, 9): 0.5, (2, 4): 0.6}
    nan = np.nan
    expected = [[0.1, 0.2, nan, nan], [0.3, 0.4, 0.6, 0.5], [nan] * 4, [nan] * 4]
    result = accuracy_matrix(accuracies, learned=[7, 2])
    assert np.array_equal(result, expected, equal_nan=True)
    assert accuracy_matrix({}, learned=[]).shape == (0, 0)
    assert np.isnan(accuracy_matrix({}, learned=[1, 0])).all()
