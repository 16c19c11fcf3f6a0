"""Drawn video is a pure function of its seed, endless, and tells the truth about itself."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.demo import COLOURS, NUM_IDENTITIES, SHAPES, Scene, draw_clip, identity_name


def test_same_seed_same_frames() -> None:
    one, two = draw_clip(5, 20), draw_clip(5, 20)
    np.testing.assert_array_equal(one.frames, two.frames)
    np.testing.assert_array_equal(one.visible, two.visible)
    assert (one.frames != draw_clip(6, 20).frames).any()


@pytest.mark.parametrize("pieces", [(1, 29), (7, 1, 22), (1,) * 30])
def test_pieces_give_the_same_frames(pieces: tuple[int, ...]) -> None:
    whole = draw_clip(11, 30)
    scene = Scene(11)
    clips = [scene.read(count) for count in pieces]
    for name in ("frames", "visible", "inside", "centres", "owners"):
        joined = np.concatenate([getattr(c, name) for c in clips])
        np.testing.assert_array_equal(joined, getattr(whole, name))
    assert scene.position == 30


def test_part_is_a_view_of_the_same_frames() -> None:
    clip = draw_clip(2, 10)
    part = clip.part(3, 6)
    assert len(part) == 4
    assert np.shares_memory(part.frames, clip.frames)
    np.testing.assert_array_equal(part.centres, clip.centres[3:7])


def test_objects_come_and_go_for_ever() -> None:
    scene = Scene(3)
    for _ in range(6):
        clip = scene.read(100)
        counts = (clip.visible > 0.7).sum(1)
        assert counts.max() <= 3
        assert len(np.unique(counts)) > 1
    assert len(scene._tracks) <= 3


@pytest.mark.parametrize("seed", range(6))
def test_truth_agrees_with_the_pixels(seed: int) -> None:
    clip = draw_clip(seed, 24)
    for frame in range(len(clip)):
        for identity in range(NUM_IDENTITIES):
            pixels = np.argwhere(clip.owners[frame] == identity)  # (k, 2), y and x
            part = clip.visible[frame, identity]
            assert (part > 0) == (len(pixels) > 0)
            assert part <= clip.inside[frame, identity] + 1e-6
            if part > 0.97:
                middle = pixels.mean(0)[::-1] + 0.5
                assert np.abs(middle - clip.centres[frame, identity]).max() < 2.5


def test_colours_can_be_told_apart() -> None:
    means: dict[int, list[np.ndarray]] = {colour: [] for colour in range(len(COLOURS))}
    for seed in range(60):
        clip = draw_clip(seed, 4)
        for identity in np.unique(clip.owners[clip.owners >= 0]).tolist():
            pixels = clip.frames[clip.owners == identity]
            if len(pixels) > 100:
                means[identity // len(SHAPES)].append(pixels.mean(0))
    centres = np.array([np.mean(values, axis=0) for values in means.values()])
    for colour, values in means.items():
        for value in values:
            assert int(np.abs(centres - value).sum(1).argmin()) == colour


def test_refuses_to_read_nothing() -> None:
    with pytest.raises(ValueError, match="at least 1 frame, asked for 0"):
        Scene(0).read(0)


def test_names() -> None:
    assert identity_name(0) == "red circle"
    assert len({identity_name(i) for i in range(NUM_IDENTITIES)}) == NUM_IDENTITIES
