"""Settings every test runs under."""

from __future__ import annotations

import os

# Before torch is imported: forked ranks hang on the locks of a parent's other threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from suite import full_precision as full_precision
from suite import no_settings_left_behind as no_settings_left_behind
from suite import no_side_work as no_side_work
from suite import pytest_collection_finish as pytest_collection_finish
from suite import pytest_collection_modifyitems as pytest_collection_modifyitems
from suite import pytest_configure as pytest_configure
from suite import same_draws as same_draws
from suite import same_draws_in_fixtures as same_draws_in_fixtures
from suite import trial_of_vmap_once as trial_of_vmap_once
from suite import users_folder as users_folder
