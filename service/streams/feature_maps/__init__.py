"""Public feature maps: functions of one record that are applied before any fit, and never change.

Statement. Private: every record of the stream. A map is fixed by constants of the stream's configuration, and row i of
what it returns is a function of row i alone. So streams that differ in one record differ in one mapped record: a
guarantee for the mapped records is the same guarantee for the records, and mapping costs nothing (paper-audit.md
D2). A mapped row that is not finite as float32 becomes NaN throughout, which every fit takes for no record:
one record never spoils another. Nothing that is learnt from records (means, principal components) is a feature map.

| kind | maps a record x to | source |
|---|---|---|
| random_fourier | √(2/p)·cos(Wx/width + b) | Rahimi and Recht 2007, Algorithm 1 |
| hashing | signed counts of its hashed tokens | Weinberger et al. 2009 |
| hog | histograms of oriented gradients | Dalal and Triggs 2005, with L2-Hys |
| standardize | (x - mean) / scale | |
| clipped_scale | (x - center)·factor, clipped to ±limit | |
| linear | Wx, W a public matrix | |
| center | x less the mean of its own coordinates | |
| normalize | x / ‖x‖, and 0 to 0 | |

Why it is the same on every machine: random numbers come from SHAKE-128 and tokens from BLAKE2b, both standards, and
categories from integers alone; which bin a gradient falls into is decided by products and comparisons of doubles, never
by an arc tangent. The rest is computed in doubles, where libraries differ near the sixteenth digit, and rounded to
float32: two machines (or a batch and a single record) agree but where a double lies that close to the middle of two
floats. A version of a kind never computes anything else; a correction would be another version.
"""

from service.streams.feature_maps.feature_map import MAX_VALUES, FeatureMap
from service.streams.feature_maps.hashing import MAX_CHARACTERS
from service.streams.feature_maps.kinds import ComposedMap, FeatureMapShape, build, followed_by, parsed, steps_of
from service.streams.feature_maps.random_fourier import MAX_RANDOM, public_normals
from service.streams.feature_maps.scaling import StandardizeMap
from service.streams.feature_maps.settings import MAX_MAPPED

__all__ = [
    "MAX_CHARACTERS",
    "MAX_MAPPED",
    "MAX_RANDOM",
    "MAX_VALUES",
    "ComposedMap",
    "FeatureMap",
    "FeatureMapShape",
    "StandardizeMap",
    "build",
    "followed_by",
    "parsed",
    "public_normals",
    "steps_of",
]
