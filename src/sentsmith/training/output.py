"""The folder of a run: what may be written there, what is gone on with, and what is never deleted."""

from __future__ import annotations

import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sentsmith import settings as settings_io
from sentsmith.errors import InputError, SettingsError
from sentsmith.files import make_folder, write_text
from sentsmith.training import processes, record
from sentsmith.training.settings import BaseRecipe

logger = logging.getLogger(__name__)

WORK = "work"
SEARCH = "tuning.json"
_DATA = "data.sha256"
_PROCESSES = "processes"


@dataclass(frozen=True)
class Output:
    """The folder of a run.

    Attributes:
        folder: Where the model goes.
        resume: Go on with an unfinished run; start one if there is none.
        overwrite: Delete the run that it holds.
        search: Whether it is the folder of a search for settings, which a single run does not go on with.
    """

    folder: Path
    resume: bool = False
    overwrite: bool = False
    search: bool = False

    @property
    def work(self) -> Path:
        """Where checkpoints lie while the run goes on."""
        return self.folder / WORK

    def check(self, recipe: BaseRecipe) -> None:
        """Say at once, before data and model are read, what would stop the run; changes nothing.

        Raises:
            InputError: The folder is a file, holds a finished run (and ``overwrite`` is off), holds an unfinished one
                (and neither ``resume`` nor ``overwrite`` is on), holds something else or what the run reads, or its
                run was begun with other settings, or as a search; or there are several processes, and the method knows
                only one.
        """
        if processes.count() > 1 and not recipe.several_processes:
            raise InputError(f"{recipe.method} trains in one process, not in {processes.count()}; start it by itself")
        processes.on_first(lambda: self._check(recipe))

    def _check(self, recipe: BaseRecipe) -> None:
        if self.resume and self.overwrite:
            raise InputError("--resume and --overwrite exclude each other; give one")
        if self.folder.is_file():
            raise InputError("is a file; give a folder for the model", path=self.folder)
        begun, finished = self.work.exists(), (self.folder / record.RECORD).exists()
        if self.overwrite:
            self._check_deletable(recipe)
        elif finished:
            raise InputError("holds a finished run; give another folder, or --overwrite", path=self.folder)
        elif begun and self.resume:
            self._check_settings(recipe)
        elif begun:
            reason = "holds an unfinished run; go on with --resume, or start again with --overwrite"
            raise InputError(reason, path=self.folder)
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise InputError("is not empty; give another folder", path=self.folder)

    def open(self, recipe: BaseRecipe, data_sha256: str) -> Path:
        """Return the work folder, made or found; deletes the earlier run if told to. Called when all input is read.

        Raises:
            InputError: See :meth:`check`; or the data has changed since the run was begun, or the number of processes.
        """
        self.check(recipe)
        return processes.on_first(lambda: self._open(recipe, data_sha256))

    def _open(self, recipe: BaseRecipe, data_sha256: str) -> Path:
        if self.overwrite and self.folder.exists():
            _delete(self.folder.resolve())
        if self.resume and not self.work.exists():
            logger.info("%s: nothing to resume; starting", self.folder)
        make_folder(self.work)
        data = self.work / _DATA
        if data.exists() and data.read_text(encoding="utf-8") != data_sha256:
            raise InputError(
                "has changed since the run was begun; start again with --overwrite", path=recipe.data.train
            )
        together = self.work / _PROCESSES
        if together.exists() and int(together.read_text(encoding="utf-8")) != processes.count():
            begun = together.read_text(encoding="utf-8")
            reason = f"was begun with {begun} processes, not {processes.count()}; start as many, or give --overwrite"
            raise InputError(reason, path=self.folder)
        settings_io.save(recipe, self.work / record.SETTINGS)
        write_text(data, data_sha256)
        write_text(together, str(processes.count()))
        return self.work

    def _check_settings(self, recipe: BaseRecipe) -> None:
        if (self.folder / SEARCH).exists() != self.search:
            how = "without --tune: it is a single run" if self.search else "with --tune: it is a search"
            raise InputError(f"was begun {how}; go on with it as such, or give --overwrite", path=self.folder)
        begun = self.work / record.SETTINGS
        if not begun.exists():
            return
        try:
            same = settings_io.resolve(type(recipe), settings_io.read_yaml(begun), path=begun) == recipe
        except SettingsError:
            same = False
        if not same:
            raise InputError("was begun with other settings; give those, or --overwrite", path=self.folder)

    def _check_deletable(self, recipe: BaseRecipe) -> None:
        if not self.folder.exists() or not any(self.folder.iterdir()):
            return
        if not any((self.folder / name).is_file() for name in (record.RECORD, f"{WORK}/{record.SETTINGS}")):
            reason = "holds something that is no run of sentsmith; --overwrite will not delete it"
            raise InputError(reason, path=self.folder)
        folder = self.folder.resolve()
        inside = [name for name in (*recipe.reads(), ".") if Path(name).resolve().is_relative_to(folder)]
        if inside:
            reason = f"holds {inside[0]!r}, which the run needs; --overwrite will not delete it"
            raise InputError(reason, path=self.folder)


def _delete(folder: Path) -> None:
    """Empty a folder by renaming it first: one that was half deleted could not be told to be a run any more."""
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".old", dir=folder.parent))
    folder.replace(old / folder.name)
    make_folder(folder)
    shutil.rmtree(old)
