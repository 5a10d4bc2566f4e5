"""The process of a fit that makes small fits of blocks, too: `python -m tests.worker.in_blocks DESCRIPTOR`."""

import numpy as np

from service.learning.optimization import sums
from service.mechanisms.scheduled import mechanism
from service.worker import fit_process

BLOCK_VALUES = 2**16

if __name__ == "__main__":
    mechanism.LARGE_BYTES = 0
    sums.BLOCK_VALUES = BLOCK_VALUES
    np.ones((512, 512)) @ np.ones((512, 512))  # the library takes all the memory that products ever need
    fit_process.main()
