import numpy as np
import pytest

from edgekv.sampling import Sampler, SamplingOptions

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def draw(options: SamplingOptions, count: int = 4000) -> np.ndarray:
    sampler = Sampler(options)
    picks = [sampler.pick(LOGITS) for _ in range(count)]
    return np.bincount(picks, minlength=4) / count


def test_greedy_takes_the_largest() -> None:
    assert Sampler(SamplingOptions()).pick(LOGITS) == 0


def test_temperature_one_follows_the_distribution() -> None:
    shares = draw(SamplingOptions(temperature=1.0, seed=1))
    np.testing.assert_allclose(shares, np.exp(LOGITS), atol=0.03)


def test_a_low_temperature_sharpens_and_a_high_one_flattens() -> None:
    low = draw(SamplingOptions(temperature=0.5, seed=1))
    high = draw(SamplingOptions(temperature=3.0, seed=1))
    assert low[0] > 0.6 > 0.4 > high[0]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    shares = draw(SamplingOptions(temperature=1.0, top_p=0.75, seed=1))
    assert shares[2] == shares[3] == 0
    assert shares[0] == pytest.approx(0.5 / 0.8, abs=0.03)
    assert draw(SamplingOptions(temperature=1.0, top_p=0.4, seed=1))[0] == 1


def test_the_same_seed_gives_the_same_draws() -> None:
    first, second = (Sampler(SamplingOptions(temperature=1.0, seed=7)) for _ in range(2))
    assert [first.pick(LOGITS) for _ in range(50)] == [second.pick(LOGITS) for _ in range(50)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"stop": "text"},
        {"stop": ("",)},
    ],
)
def test_wrong_options_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingOptions(**wrong)  # type: ignore[arg-type]
