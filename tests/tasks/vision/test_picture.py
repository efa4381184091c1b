"""Pictures of the user's: whatever their colours and sizes, ink on paper; or one clear line."""

import numpy as np
import pytest
from PIL import Image

from relpos_tasks.vision.picture import read_picture


@pytest.fixture
def drawn(digits):
    """Grey values of a digit, dark on light, with blank paper around it."""
    paper = np.full((12, 14), 255, np.uint8)
    image = digits.valid[0].image
    paper[2:10, 3 : 3 + image.shape[1]] -= (240 * image).astype(np.uint8)
    return paper


def written(array, path, mode=None, **options):
    picture = Image.fromarray(array)
    (picture if mode is None else picture.convert(mode)).save(path, **options)
    return path


def test_dark_on_light_and_light_on_dark_are_the_same_ink(drawn, tmp_path):
    one = read_picture(written(drawn, tmp_path / "dark.png"))
    other = read_picture(written(255 - drawn, tmp_path / "light.png"))
    np.testing.assert_allclose(one.image, other.image, atol=1e-6)
    assert one.words == "14 x 12 pixels, dark on light"
    assert other.words == "14 x 12 pixels, light on dark"
    assert (one.image.min(), one.image.max()) == (0, 1)
    assert not one.image[0].any()


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("a.png", "RGB"), ("a.png", "LA"), ("a.png", "P"), ("a.gif", None), ("a.bmp", None),
        ("a.tiff", "I;16"), ("a.webp", "RGB"),
    ],
)  # fmt: skip
def test_kinds_of_files_and_colours_read_alike(drawn, tmp_path, name, mode):
    want = read_picture(written(drawn, tmp_path / "grey.png")).image
    if mode == "I;16":
        path = written(drawn.astype(np.uint16) * 257, tmp_path / name)
    else:
        path = written(drawn, tmp_path / name, mode)
    # WebP loses a little.
    np.testing.assert_allclose(read_picture(path).image, want, atol=0.1)


def test_jpeg_keeps_paper_blank(drawn, tmp_path):
    found = read_picture(written(drawn, tmp_path / "a.jpg", quality=60)).image
    assert not found[0].any()
    assert found.max() == 1


def test_transparent_paper_is_white(drawn, tmp_path):
    colored = np.zeros((*drawn.shape, 4), np.uint8)
    colored[..., 3] = 255 - drawn
    found = read_picture(written(colored, tmp_path / "a.png"))
    want = read_picture(written(drawn, tmp_path / "b.png"))
    np.testing.assert_allclose(found.image, want.image, atol=0.02)


def test_the_picture_is_scaled_so_that_digits_are_eight_pixels_high(drawn, tmp_path):
    large = np.kron(drawn, np.ones((4, 4), np.uint8))
    found = read_picture(written(large, tmp_path / "large.png"), digit_height=32)
    want = read_picture(written(drawn, tmp_path / "small.png"))
    np.testing.assert_allclose(found.image, want.image, atol=1e-6)
    assert found.words == "56 x 48 pixels, scaled to 14 x 12, dark on light"
    half = read_picture(written(drawn[::2, ::2].copy(), tmp_path / "half.png"), digit_height=4)
    assert half.image.shape == (12, 14)


def test_a_photograph_is_turned_as_its_camera_says(drawn, tmp_path):
    picture = Image.fromarray(drawn)
    exif = picture.getexif()
    exif[0x0112] = 6  # Turn by 90 degrees.
    picture.save(tmp_path / "turned.png", exif=exif)
    want = read_picture(written(np.rot90(drawn, -1).copy(), tmp_path / "upright.png"))
    np.testing.assert_allclose(read_picture(tmp_path / "turned.png").image, want.image)


def test_what_is_no_picture_is_refused_in_one_line(drawn, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("seven")
    whole = written(drawn, tmp_path / "whole.png").read_bytes()
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole[: len(whole) // 2])
    blank = written(np.full((9, 9), 200, np.uint8), tmp_path / "blank.png")
    for path, message in (
        (text, "cannot be read as a picture: no picture that Pillow knows"),
        (cut, "cannot be read as a picture: "),
        (blank, "must show ink on paper, got a picture of one shade"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            read_picture(path)
        assert str(error.value).startswith(f"{path}: ")
        assert "\n" not in str(error.value)


def test_pictures_that_are_too_large_say_what_to_do(tmp_path):
    large = written(np.tile(np.arange(200, dtype=np.uint8), (200, 1)), tmp_path / "large.png")
    with pytest.raises(
        ValueError, match="got 200 x 200; say how high they are with --digit-height"
    ):
        read_picture(large)
    assert read_picture(large, digit_height=20).image.shape == (80, 80)
    huge = tmp_path / "huge.png"
    Image.new("1", (10_000, 6_000)).save(huge)
    with pytest.raises(ValueError, match="at most 50,000,000 pixels, got 10000 x 6000"):
        read_picture(huge, digit_height=100)


def test_a_folder_and_a_missing_file_are_the_systems_own_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_picture(tmp_path / "no.png")
    with pytest.raises(IsADirectoryError):
        read_picture(tmp_path)
    with pytest.raises(OSError, match="not an ordinary file"):
        read_picture("/dev/zero")
    with pytest.raises(ValueError, match="digit_height must be at least 1, got 0"):
        read_picture(tmp_path, digit_height=0)
