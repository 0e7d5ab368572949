"""Files of this machine and of a file system of Hadoop, by the same calls."""
from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ...._missing import missing

__all__ = ["HDFSClient", "LocalFS"]

__getattr__ = missing(__name__)


class ExecuteError(Exception):
    """A command of a client has failed."""


class FSFileExistsError(Exception):
    """There is such a file already."""


class FSFileNotExistsError(Exception):
    """There is no such file."""


class FSTimeOut(Exception):
    """A command of a client took too long."""


class FSShellCmdAborted(ExecuteError):
    """A command of a client could not be run."""


class FS:
    """What every file system can do."""

    def ls_dir(self, fs_path: str) -> Tuple[List[str], List[str]]:
        """Names of folders and of files in a folder."""
        raise NotImplementedError

    def is_file(self, fs_path: str) -> bool:
        """Whether it is a file."""
        raise NotImplementedError

    def is_dir(self, fs_path: str) -> bool:
        """Whether it is a folder."""
        raise NotImplementedError

    def is_exist(self, fs_path: str) -> bool:
        """Whether it is a file or a folder."""
        raise NotImplementedError

    def need_upload_download(self) -> bool:
        """Whether files are on another machine."""
        raise NotImplementedError


class LocalFS(FS):
    """Files of this machine.

    >>> LocalFS().is_exist("/no/such/file")
    False
    """

    def ls_dir(self, fs_path: str) -> Tuple[List[str], List[str]]:
        """Names of folders and of files in a folder; none if there is no such folder."""
        if not self.is_exist(fs_path):
            return [], []
        names = sorted(os.listdir(fs_path))
        folders = [n for n in names if os.path.isdir(os.path.join(fs_path, n))]
        return folders, [n for n in names if n not in set(folders)]

    def list_dirs(self, fs_path: str) -> List[str]:
        """Names of folders in a folder."""
        return self.ls_dir(fs_path)[0]

    def mkdirs(self, fs_path: str) -> None:
        """Makes a folder and those above it."""
        os.makedirs(fs_path, exist_ok=True)

    def is_file(self, fs_path: str) -> bool:
        """Whether it is a file."""
        return os.path.isfile(fs_path)

    def is_dir(self, fs_path: str) -> bool:
        """Whether it is a folder."""
        return os.path.isdir(fs_path)

    def is_exist(self, fs_path: str) -> bool:
        """Whether it is a file or a folder."""
        return os.path.exists(fs_path)

    def need_upload_download(self) -> bool:
        """False."""
        return False

    def delete(self, fs_path: str) -> None:
        """Removes a file, or a folder with everything in it."""
        if not self.is_exist(fs_path):
            return
        if os.path.isdir(fs_path) and not os.path.islink(fs_path):
            shutil.rmtree(fs_path)
        else:
            os.remove(fs_path)

    def rename(self, fs_src_path: str, fs_dst_path: str) -> None:
        """Gives a file or folder another name."""
        os.rename(fs_src_path, fs_dst_path)

    def mv(
        self, src_path: str, dst_path: str, overwrite: bool = False, test_exists: bool = False
    ) -> None:
        """As :meth:`rename`; an existing target is an error unless it may be overwritten."""
        if not self.is_exist(src_path):
            raise FSFileNotExistsError(f"mv: there is no {src_path}")
        if self.is_exist(dst_path):
            if not overwrite:
                raise FSFileExistsError(f"mv: there is a {dst_path} already")
            self.delete(dst_path)
        self.rename(src_path, dst_path)

    def touch(self, fs_path: str, exist_ok: bool = True) -> None:
        """Makes an empty file."""
        if self.is_exist(fs_path):
            if exist_ok:
                return
            raise FSFileExistsError(f"touch: there is a {fs_path} already")
        with open(fs_path, "a"):
            pass

    def cat(self, fs_path: Optional[str] = None) -> str:
        """The text of a file."""
        if fs_path is None or not self.is_file(fs_path):
            raise FSFileNotExistsError(f"cat: there is no file {fs_path}")
        with open(fs_path, encoding="utf-8") as file:
            return file.read().rstrip("\n")

    def upload(self, local_path: str, fs_path: str) -> None:
        """Copies a file or folder."""
        if os.path.isdir(local_path):
            shutil.copytree(local_path, fs_path, dirs_exist_ok=True)
        else:
            shutil.copy2(local_path, fs_path)

    upload_dir = upload

    def download(self, fs_path: str, local_path: str) -> None:
        """Copies a file or folder."""
        self.upload(fs_path, local_path)


class HDFSClient(FS):
    """A file system of Hadoop, by the command ``hadoop fs`` of an installation.

        client = HDFSClient("/opt/hadoop", {"fs.default.name": "hdfs://host:port",
                                            "hadoop.job.ugi": "user,password"})
    """

    def __init__(
        self, hadoop_home: str, configs: Optional[Dict[str, str]], time_out: int = 5 * 60 * 1000,
        sleep_inter: int = 1000,
    ) -> None:
        self._command = [os.path.join(hadoop_home, "bin", "hadoop"), "fs"]
        for name, value in (configs or {}).items():
            self._command.append(f"-D{name}={value}")
        self._limit_s, self._pause_s = time_out / 1000, sleep_inter / 1000
        self._tries = 3

    def _start(self, args: Sequence[str]) -> Any:
        try:
            return subprocess.run(
                [*self._command, *args], capture_output=True, text=True, timeout=self._limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            command = f"hadoop fs {' '.join(args)}"
            raise FSTimeOut(f"{command}: no end after {self._limit_s:g} s") from None
        except OSError as error:
            raise FSShellCmdAborted(
                f"cannot start {self._command[0]}: {error.strerror}; pass the folder of a Hadoop "
                "client as hadoop_home"
            ) from None

    def _run(self, *args: str) -> str:
        for attempt in range(self._tries):
            done = self._start(args)
            if done.returncode == 0:
                return done.stdout
            if attempt + 1 < self._tries:
                time.sleep(self._pause_s)
        raise ExecuteError(
            f"hadoop fs {' '.join(args)} has failed with status {done.returncode}: "
            f"{done.stderr.strip()}"
        )

    def _test(self, flag: str, fs_path: str) -> bool:
        done = self._start(["-test", flag, fs_path])
        if done.returncode not in (0, 1):
            raise ExecuteError(f"hadoop fs -test {flag} {fs_path}: {done.stderr.strip()}")
        return done.returncode == 0

    def is_exist(self, fs_path: str) -> bool:
        """Whether it is a file or a folder."""
        return self._test("-e", fs_path)

    def is_dir(self, fs_path: str) -> bool:
        """Whether it is a folder."""
        return self._test("-d", fs_path)

    def is_file(self, fs_path: str) -> bool:
        """Whether it is a file."""
        return self.is_exist(fs_path) and not self.is_dir(fs_path)

    def _list(self, fs_path: str) -> List[List[str]]:
        lines = self._run("-ls", fs_path).splitlines()
        # Rights, copies, owner, group, size, date, time, path.
        rows = [line.split(None, 7) for line in lines]
        return [row for row in rows if len(row) == 8]

    def ls_dir(self, fs_path: str) -> Tuple[List[str], List[str]]:
        """Names of folders and of files in a folder; none if there is no such folder."""
        if not self.is_exist(fs_path):
            return [], []
        folders, files = [], []
        for row in self._list(fs_path):
            (folders if row[0].startswith("d") else files).append(os.path.basename(row[7]))
        return folders, files

    def list_dirs(self, fs_path: str) -> List[str]:
        """Names of folders in a folder."""
        return self.ls_dir(fs_path)[0]

    def list_files_info(self, path_list: Sequence[str]) -> List[Dict[str, Any]]:
        """Path and size of files."""
        rows = [row for path in path_list for row in self._list(path)]
        return [{"path": row[7], "size": int(row[4])} for row in rows if row[0].startswith("-")]

    def mkdirs(self, fs_path: str) -> None:
        """Makes a folder and those above it."""
        self._run("-mkdir", "-p", fs_path)

    def delete(self, fs_path: str) -> None:
        """Removes a file, or a folder with everything in it."""
        if self.is_exist(fs_path):
            self._run("-rm", "-r", fs_path)

    def mv(
        self, fs_src_path: str, fs_dst_path: str, overwrite: bool = False, test_exists: bool = True
    ) -> None:
        """Gives a file or folder another name."""
        if test_exists and not self.is_exist(fs_src_path):
            raise FSFileNotExistsError(f"mv: there is no {fs_src_path}")
        if overwrite:
            self.delete(fs_dst_path)
        elif test_exists and self.is_exist(fs_dst_path):
            raise FSFileExistsError(f"mv: there is a {fs_dst_path} already")
        self._run("-mv", fs_src_path, fs_dst_path)

    rename = mv

    def touch(self, fs_path: str, exist_ok: bool = True) -> None:
        """Makes an empty file."""
        if self.is_exist(fs_path):
            if exist_ok:
                return
            raise FSFileExistsError(f"touch: there is a {fs_path} already")
        self._run("-touchz", fs_path)

    def cat(self, fs_path: Optional[str] = None) -> str:
        """The text of a file."""
        if fs_path is None or not self.is_file(fs_path):
            raise FSFileNotExistsError(f"cat: there is no file {fs_path}")
        return self._run("-cat", fs_path).rstrip("\n")

    def upload(
        self, local_path: str, fs_path: str, multi_processes: int = 5, overwrite: bool = False
    ) -> None:
        """Copies a file or folder of this machine."""
        if not os.path.exists(local_path):
            raise FSFileNotExistsError(f"upload: there is no {local_path}")
        self._run("-put", *(["-f"] if overwrite else []), local_path, fs_path)

    upload_dir = upload

    def download(
        self, fs_path: str, local_path: str, multi_processes: int = 5, overwrite: bool = False
    ) -> None:
        """Copies a file or folder to this machine."""
        if not self.is_exist(fs_path):
            raise FSFileNotExistsError(f"download: there is no {fs_path}")
        if overwrite and os.path.exists(local_path):
            LocalFS().delete(local_path)
        self._run("-get", fs_path, local_path)

    def need_upload_download(self) -> bool:
        """True."""
        return True
