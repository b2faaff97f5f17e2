"""Folders of images: lists the files and finds the class and split of each.

root/class/image                      one folder per class
root/group/class/image                classes in groups
root/train/..., root/val|test/...     either of these, already split
"""

import hashlib
import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from blockout.data.config import DataError
from blockout.data.tables import HOLDOUT, TEST, TRAIN, Catalogue, Table, join

SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".webp", ".tif", ".tiff",
    ".ppm", ".pgm", ".pbm", ".pnm", ".avif",
)  # fmt: skip
"""Of the kinds that `images.FORMATS` reads."""
UNREAD = (".heic", ".heif", ".jxl", ".jp2", ".dng", ".raw", ".cr2", ".cr3", ".nef", ".arw")
"""Of photographs that nothing here reads."""
MOST_WRAPPINGS = 3
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
}


@dataclass(frozen=True)
class Listing:
    """The files of one split."""

    folder: Path
    images: tuple[str, ...]
    """In order, relative to the folder; plain strings, because there may be millions."""
    empty: tuple[str, ...]
    """Folders with no image in or below them."""
    ignored: Counter


@dataclass(frozen=True)
class Naming:
    """How folder names become classes."""

    nested: bool
    """group/class/image; otherwise the top folder is the class, however deep the image is."""
    groups: dict[str, str]

    def class_of(self, image: str) -> str:
        return image.split(os.sep, 2)[1 if self.nested else 0]


@dataclass(frozen=True)
class ImageFolder:
    """A folder that has been listed and checked; nothing is decoded yet."""

    root: Path
    splits: dict[str, Listing]
    naming: Naming
    notes: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """Changes when a file is added, removed or rewritten."""
        digest = hashlib.sha256()
        for name, listing in self.splits.items():
            for image in listing.images:
                stamp = _stamp(os.path.join(listing.folder, image))
                digest.update(f"{name}/{image}|{stamp}\n".encode())
        return digest.hexdigest()

    def open(self) -> Table:
        from datasets import Dataset

        listings = self.splits.items()
        names = [[self.naming.class_of(i) for i in one.images] for _, one in listings]
        classes, labels = np.unique(
            np.concatenate([np.array(n) for n in names]), return_inverse=True
        )
        codes = part_codes(self.splits)
        parts = np.repeat([codes[name] for name in self.splits], [len(n) for n in names])
        groups, group_names = self._groups(classes.tolist())
        catalogue = Catalogue(
            tuple(classes.tolist()), groups, group_names, labels.astype(np.int64), parts, self.notes
        )
        files = {
            name: Dataset.from_dict({"file": [os.path.join(one.folder, i) for i in one.images]})
            for name, one in listings
        }
        return Table(catalogue, join(files, "file", str(self.root)))

    def _groups(
        self, classes: list[str]
    ) -> tuple[tuple[int, ...], tuple[str, ...]] | tuple[None, None]:
        if not self.naming.groups:
            return None, None
        names = sorted(set(self.naming.groups.values()))
        return tuple(names.index(self.naming.groups[c]) for c in classes), tuple(names)


def _stamp(file: str) -> str:
    """Size and time of the last change. A broken link is reported when its image is read."""
    try:
        status = os.stat(file)
    except OSError:
        return "missing"
    return f"{status.st_size}|{status.st_mtime_ns}"


def part_codes(splits: Collection[str]) -> dict[str, int]:
    """The part of each split. A validation split is the hold-out if there is a test split, else the
    test set."""
    return {"train": TRAIN, "test": TEST, "val": HOLDOUT if "test" in splits else TEST}


def list_folder(root: Path) -> ImageFolder:
    """Lists a folder of images and checks its classes.

    Raises:
        DataError: there are no images or no class folders, or a split has none of the classes.
    """
    inner = _unwrapped(root)
    splits, strangers = _split_folders(inner)
    listings = {name: _list_images(folder) for name, folder in splits.items()}
    empty = [name for name, one in listings.items() if name != "train" and not one.images]
    for name in empty:
        del listings[name]
    naming = _naming(listings["train"].images)
    for listing in listings.values():
        _check_listing(listing)
    loose = [i for one in listings.values() for i in one.images if _depth(i) == 0]
    listings = {name: _without_loose(listing) for name, listing in listings.items()}
    listings, differing = _of_trained_classes(root, listings, naming)
    notes = _notes(root, splits, listings, strangers, naming)
    if empty:
        notes.append(f"ignored, because there are no images in it: {listed(set(empty))}")
    if loose:
        notes.append(f"images that are in no class folder are left out: {listed(set(loose), 3)}")
    return ImageFolder(root, listings, naming, (*notes, *differing))


def _unwrapped(root: Path) -> Path:
    """The folder that holds the data: archives often wrap it in a folder that holds nothing else.

    A folder without folders in it is a class, not a wrapping.
    """
    for _ in range(MOST_WRAPPINGS):
        inside = [entry for entry in root.iterdir() if not _hidden(entry.name)]
        folders = [entry for entry in inside if entry.is_dir()]
        images = any(entry.suffix.lower() in SUFFIXES for entry in inside)
        if len(folders) != 1 or images:
            return root
        if not any(e.is_dir() and not _hidden(e.name) for e in folders[0].iterdir()):
            return root
        root = folders[0]
    return root


def _split_folders(root: Path) -> tuple[dict[str, Path], list[str]]:
    """The split folders by standard name, and the names of other folders beside them.

    `train` is a split only if it contains folders: a class of railway trains contains images.
    """
    folders = sorted(
        entry for entry in root.iterdir() if entry.is_dir() and not _hidden(entry.name)
    )
    splits: dict[str, Path] = {}
    for folder in folders:
        if name := SPLIT_NAMES.get(folder.name.lower()):
            if name in splits:
                raise DataError(
                    f"{root} has both {splits[name].name}/ and {folder.name}/; "
                    "keep one folder per split"
                )
            splits[name] = folder
    if "train" in splits and any(
        e.is_dir() and not _hidden(e.name) for e in splits["train"].iterdir()
    ):
        ordered = {name: splits[name] for name in ("train", "val", "test") if name in splits}
        return ordered, [f.name for f in folders if f not in splits.values()]
    if "train" in splits and len(splits) == len(folders):
        raise DataError(
            f"{splits['train']} has no class folders; "
            f"expected {splits['train'].name}/<class>/<image>"
        )
    return {"train": root}, []


def _depth(image: str) -> int:
    return image.count(os.sep)


def _hidden(name: str) -> bool:
    return name.startswith((".", "__", "@"))


def _list_images(folder: Path) -> Listing:
    images, empty, ignored = [], [], Counter()
    seen: dict[tuple[int, int], str] = {}
    for place, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
        _require_unseen(place, seen)
        folders[:] = sorted(f for f in folders if not _hidden(f))
        here = os.path.relpath(place, folder)
        found = 0
        for file in sorted(f for f in files if not f.startswith(".")):
            suffix = Path(file).suffix.lower()
            if suffix in SUFFIXES:
                _require_text(place, file)
                images.append(os.path.normpath(os.path.join(here, file)))
                found += 1
            else:
                ignored[suffix or "no suffix"] += 1
        if not found and not folders:
            empty.append(here)
    return Listing(folder, tuple(images), tuple(empty), ignored)


def _raise(error: OSError) -> None:
    raise error


def _require_unseen(place: str, seen: dict[tuple[int, int], str]) -> None:
    """A link to a folder that is listed anyway would repeat its images, or never end."""
    status = os.stat(place)
    known = seen.setdefault((status.st_dev, status.st_ino), place)
    if known != place:
        raise DataError(f"{place} is the same folder as {known}; remove the link")


def _require_text(place: str, file: str) -> None:
    """Names and classes are stored as UTF-8, which not every file name is."""
    path = os.path.join(place, file)
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"the name of {path!r} is not UTF-8; rename it") from error


def _naming(images: tuple[str, ...]) -> Naming:
    """group/class/image if every image is that deep and no class name occurs in two groups."""
    pairs = {tuple(image.split(os.sep)[:2]) for image in images if _depth(image) == 2}
    groups = {name: group for group, name in pairs}
    nested = all(_depth(image) in (0, 2) for image in images) and len(groups) == len(pairs) > 1
    several = len(set(groups.values())) > 1
    return Naming(nested, groups if nested and several else {})


def _check_listing(listing: Listing) -> None:
    folder = listing.folder
    if not listing.images:
        raise DataError(
            f"{folder} holds no images; expected one folder per class: {folder}/<class>/<image>"
        )
    if all(_depth(image) == 0 for image in listing.images):
        raise DataError(
            f"the images of {folder} are directly in it; "
            f"expected one folder per class: {folder}/<class>/<image>"
        )


def _within(root: Path, folder: Path) -> str:
    """What notes call a folder: they are kept and shown, so they say nothing of this machine."""
    return "the data folder" if folder == root else folder.relative_to(root).as_posix()


def _of_trained_classes(
    root: Path, listings: dict[str, Listing], naming: Naming
) -> tuple[dict[str, Listing], list[str]]:
    """Leaves out images of classes that are not trained on, and says how the splits differ."""
    trained = {naming.class_of(i) for i in listings["train"].images if _depth(i) > naming.nested}
    found, notes = {}, []
    for name, listing in listings.items():
        known = [i for i in listing.images if _depth(i) > naming.nested]
        images = tuple(i for i in known if naming.class_of(i) in trained)
        there = {naming.class_of(i) for i in known}
        if unknown := there - trained:
            notes.append(
                f"{len(known) - len(images)} images in {_within(root, listing.folder)} are left "
                f"out: their classes have no training images ({listed(unknown)})"
            )
        if lacking := trained - there:
            notes.append(f"{_within(root, listing.folder)} has no image of {listed(lacking)}")
        if empty := {e for e in listing.empty if e != "."} if name == "train" else set():
            notes.append(f"folders without images are left out: {listed(empty)}")
        if not images:
            raise DataError(
                f"{listing.folder} holds no image of the classes in {listings['train'].folder}; "
                f"it has {listed(there)}, expected some of {listed(trained)}"
            )
        found[name] = replace(listing, images=images)
    return found, notes


def _without_loose(listing: Listing) -> Listing:
    classed = tuple(image for image in listing.images if _depth(image) > 0)
    return Listing(listing.folder, classed, listing.empty, listing.ignored)


def _notes(
    root: Path,
    splits: dict[str, Path],
    listings: dict[str, Listing],
    strangers: list[str],
    naming: Naming,
) -> list[str]:
    notes = []
    if ignored := sum((listing.ignored for listing in listings.values()), Counter()):
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in ignored.most_common(5))
        files = "1 file" if ignored.total() == 1 else f"{ignored.total()} files"
        notes.append(f"ignored {files} that cannot be read as images ({kinds})")
    if photographs := {suffix for suffix in UNREAD if ignored[suffix]}:
        notes.append(f"to use photographs that end in {listed(photographs)}, save them as JPEG")
    if strangers:
        notes.append(f"ignored folders beside {splits['train'].name}/: {listed(set(strangers))}")
    if not naming.nested and any(_depth(image) > 1 for image in listings["train"].images):
        deep = {i.split(os.sep, 1)[0] for i in listings["train"].images if _depth(i) > 1}
        where, have = _within(root, splits["train"]), "has" if len(deep) == 1 else "have"
        notes.append(
            f"the folders directly in {where} are the classes; deeper ones are not: "
            f"{listed(deep, 3)} {have} folders inside. If those are classes, move them up"
        )
    return notes


def listed(names: set[str], most: int = 5) -> str:
    """`'a', 'b' and 7 more`, or `none`."""
    shown = ", ".join(repr(name) for name in sorted(names)[:most]) or "none"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
