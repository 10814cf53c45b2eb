# SPDX-License-Identifier: Apache-2.0
"""The fastest measured kernels, by GPU, spec and problem: the user's own file, and one that ships.

entry          an entry and its key
sqlite_file    one SQLite file: WAL, many processes, damage
user_database  the user's file: entries, trials, claims
exchange       entries as JSON: `export`, `import_`, and the file that ships
choice         the plan that `build` uses

    python -m cutegemm.database show | export FILE | import FILE
"""

from cutegemm.database.choice import Choice, choose
from cutegemm.database.entry import Entry, Key, key_of
from cutegemm.database.exchange import export, import_
from cutegemm.database.user_database import Database

__all__ = ["Choice", "Database", "Entry", "Key", "choose", "export", "import_", "key_of"]
