"""Files of figures, and settings that stay alone."""

import threading

import matplotlib

from blockout.show.figures import CATALOGUE, encoded
from blockout.show.figures.convergence import convergence


def test_an_svg_is_small_has_text_and_is_the_same_every_time(run):
    first, second = (encoded(CATALOGUE[10].draw([run], ()), "svg") for _ in range(2))
    assert first == second and len(first) < 300_000
    assert b"<text" in first and b"<dc:date>" not in first


def test_drawing_leaves_settings_alone_and_works_in_threads(run):
    before = dict(matplotlib.rcParams)
    alone = encoded(convergence([run]), "png")
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(encoded(convergence([run]), "png")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 2 and dict(matplotlib.rcParams) == before
