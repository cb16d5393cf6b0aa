"""The isotropy report on embeddings whose rank, eigenvalues and norms are known, and its picture."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from helpers.lejepa.isotropy import isotropy, plot_isotropy
from helpers.lejepa.sigreg import gaussian_floor

pytestmark = pytest.mark.once

# N texts · K embedding


def gaussian(N=4096, K=32, seed=0):
    return np.random.default_rng(seed).normal(size=(N, K))


def with_covariance(eigenvalues_K, N=500, mean=0.0, seed=0):
    """N rows whose sample covariance has exactly these eigenvalues, in a rotated basis."""
    rng = np.random.default_rng(seed)
    K = len(eigenvalues_K)
    centred_NK = rng.normal(size=(N, K))
    centred_NK -= centred_NK.mean(0)
    white_NK = np.linalg.svd(centred_NK, full_matrices=False)[0] * math.sqrt(N - 1)
    rotation_KK = np.linalg.qr(rng.normal(size=(K, K)))[0]
    return white_NK * np.sqrt(eigenvalues_K) @ rotation_KK + mean


def test_a_gaussian_has_no_excess_full_rank_and_the_norms_of_chi_squared():
    N, K = 4096, 32
    report = isotropy(gaussian(N, K))
    assert (report.texts, report.dimensions) == (N, K)
    assert abs(report.sigreg_excess) < 0.3  # 1,024 slices of 32 dimensions are not independent
    assert 31.5 < report.effective_rank < 32
    assert report.eigenvalues_K[-1] == pytest.approx((1 + math.sqrt(K / N)) ** 2, rel=0.03)
    assert report.eigenvalues_K[0] == pytest.approx((1 - math.sqrt(K / N)) ** 2, rel=0.03)
    assert report.norm_distance < 1.63 / math.sqrt(N)  # the Kolmogorov-Smirnov test's at 1 %


def test_the_excess_of_gaussians_averages_to_zero_for_any_knots():
    for t_max, n_points in ((3.0, 17), (5.0, 41)):
        reports = [
            isotropy(gaussian(64, 64, seed), t_max=t_max, n_points=n_points, num_slices=64) for seed in range(60)
        ]
        assert np.mean([report.sigreg_excess for report in reports]) == pytest.approx(0, abs=0.1)
        assert reports[0].sigreg - reports[0].sigreg_excess == pytest.approx(gaussian_floor(t_max, n_points))


def test_equal_eigenvalues_in_r_directions_have_effective_rank_r():
    report = isotropy(with_covariance([2.0] * 5 + [0.0] * 11))
    assert report.effective_rank == pytest.approx(5)
    assert report.participation_ratio == pytest.approx(5)
    assert report.eigenvalues_K[-1] == pytest.approx(2)
    assert report.eigenvalues_K[0] == pytest.approx(0, abs=1e-12)


def test_effective_rank_is_the_exponential_of_the_entropy_and_blind_to_scale():
    share_K = np.array([0.5, 0.25, 0.125, 0.125])
    expected = 2 ** scipy.stats.entropy(share_K, base=2)
    assert expected == 2**1.75
    for scale in (1e-4, 1.0, 1e4):
        report = isotropy(with_covariance(scale * share_K))
        assert report.effective_rank == pytest.approx(expected)
        assert report.participation_ratio == pytest.approx(1 / (0.25 + 0.0625 + 2 * 0.015625))


def test_the_mean_counts_in_sigreg_but_not_in_the_eigenvalues():
    report = isotropy(with_covariance([1.0, 1.0, 1.0], mean=4.0))
    np.testing.assert_allclose(report.eigenvalues_K, 1)
    assert report.sigreg_excess > 100


def test_unit_vectors_fail_by_sigreg_and_norms_and_pass_by_rank():
    unit_NK = gaussian(1024, 64)
    unit_NK /= np.linalg.norm(unit_NK, axis=1, keepdims=True)
    report = isotropy(unit_NK)
    assert report.sigreg > 0.35 * 1024
    assert report.norm_distance == pytest.approx(1)
    assert report.effective_rank > 60


def test_corners_of_a_hypercube_pass_sigreg_and_fail_by_their_norms():
    corners_NK = np.sign(gaussian(1024, 512))
    report = isotropy(corners_NK)
    assert report.sigreg_excess < 0.2
    assert report.norm_distance > 0.4


def test_the_norm_test_is_scipys_on_squared_norms():
    embeddings_NK = 1.05 * gaussian(200, 16)
    expected = scipy.stats.ks_1samp((embeddings_NK**2).sum(1), scipy.stats.chi2(16).cdf)
    report = isotropy(embeddings_NK)
    assert report.norm_distance == pytest.approx(expected.statistic)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_that_require_gradients_are_measured_as_arrays_are(dtype):
    tensor_NK = torch.from_numpy(gaussian(64, 8)).to(dtype).requires_grad_()
    expected = isotropy(tensor_NK.detach().double().numpy()).results()
    assert isotropy(tensor_NK).results() == expected


def test_results_are_numbers_without_the_arrays():
    results = isotropy(gaussian(64, 8)).results()
    assert {"texts", "sigreg_excess", "effective_rank", "norm_distance"} < set(results)
    assert all(isinstance(value, (int, float)) for value in results.values())


def test_rows_that_are_not_finite_are_refused():
    embeddings_NK = gaussian(64, 8)
    embeddings_NK[[3, 5], 0] = np.nan, np.inf
    with pytest.raises(ValueError, match="2 of 64 rows hold NaN or infinity"):
        isotropy(embeddings_NK)


def test_embeddings_that_are_all_the_same_are_refused():
    with pytest.raises(ValueError, match="all rows are the same"):
        isotropy(np.full((63, 8), 0.1))


# ---- the picture


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    path = tmp_path_factory.mktemp("plots") / "folder/isotropy.png"
    reports = {"before": isotropy(with_covariance([9.0] * 4 + [0.0] * 12)), "after": isotropy(gaussian(500, 16))}
    figure = plot_isotropy(reports, path, title="Before and after")
    yield figure, path
    matplotlib.pyplot.close(figure)


def test_the_picture_is_written_as_png_with_its_folder(picture):
    assert picture[1].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_both_panels_show_every_report_and_the_gaussian(picture):
    figure, _ = picture
    spectrum, norms = figure.axes
    assert figure.get_suptitle() == "Before and after"
    assert [text.get_text() for text in spectrum.get_legend().get_texts()] == [
        "before (effective rank 4 of 16)",
        "after (effective rank 16 of 16)",
        "N(0, I), 500 draws",
    ]
    assert {text.get_text() for text in norms.get_legend().get_texts()} == {"before", "after", "N(0, I)"}
    assert all(axes.get_title() and axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)


def test_eigenvalues_are_drawn_largest_first_as_shares_of_their_mean(picture):
    before, after, drawn = picture[0].axes[0].get_lines()
    np.testing.assert_allclose(before.get_ydata()[:5], [4, 4, 4, 4, 1e-8], rtol=1e-6)
    assert after.get_ydata().mean() == pytest.approx(1)
    assert (np.diff(after.get_ydata()) <= 0).all()
    assert drawn.get_ydata().mean() == pytest.approx(1, abs=0.1)
