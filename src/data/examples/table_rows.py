# SPDX-License-Identifier: Apache-2.0
"""Prints the rows of a Parquet file as JSON Lines, for src/data/examples/table.cc, which embeds this text.

Values that JSON does not have are objects that no column of text takes. The last line is #done, or
#error and the reason."""
import json
import math
import signal
import sys


def plain(value):
    """Returns the value without what JSON does not have."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {"unreadable": type(value).__name__}


def main():
    try:
        import pyarrow.parquet
    except ImportError:
        print("#error this Python (" + sys.executable + ") has no pyarrow; try " + sys.executable
              + " -m pip install pyarrow, or HOCKET_PYTHON=<a Python that has it>")
        return
    try:
        with pyarrow.parquet.ParquetFile(sys.argv[1]) as table:
            for batch in table.iter_batches(batch_size=128):
                for row in batch.to_pylist():
                    print(json.dumps(plain(row), ensure_ascii=False, allow_nan=False))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        print("#error " + " ".join(str(error).split()))
        return
    print("#done")


signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader may have enough
sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="\n")
main()
